"""Members that do not get on are let go: by what they say, and by what others wait for.

A member whose own thread makes no step within its limit is ended
(`pcp.training.coordinator.guards.progress_guard`). One that is with others, in an
exchange or where a group is formed, makes none, and rightly. There it is seen by the
others: each says with its heartbeats, and when it gives up, which ranks have not come
to the call that it is in. Whom most of them lack for as long as a step may take, and
who is in no such call itself, hangs: it is ended too, and the reason has the number of
those who wait. Before that the round goes on without it.
"""

from collections.abc import Collection, Mapping, Set

from pcp.errors import StateMismatch, counted
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.guards.conduct import Conduct
from pcp.training.coordinator.roster import RESTORING, Member
from pcp.training.coordinator.round_policy import RoundPolicy
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.wire.messages import (
    GroupFailed,
    Stalled,
)

_MAX_RETRIES = 3
_ALONE = 6.0
"""So many times as long a member may be where nobody waits for it."""


class ProgressPolicy(RoundPolicy):
    """The part of a run's rounds that looks at whether members get on."""

    _run: RunState
    _validation: Validation
    _conduct: Conduct

    def drop(self, member: Member, reason: str) -> None:
        """Remove a worker; its part of this round does not count."""
        self._run.remove(member, reason)
        self._validation.lost(member.name)
        self._run.log(f"{member.who} left: {reason}")
        self.lost(member)

    def _end(self, member: Member, why: str) -> None:
        """Remove a member and have its process end."""
        self._run.send(member, Stalled(reason=why))
        self.drop(member, why)

    # All the time ---------------------------------------------------------------------

    def check_progress(self, now: float) -> None:
        """Remove members that make no progress."""
        roster = self._run.roster
        first_steps: dict[str, float | None] = {}
        for member in roster:
            name, pace, attempt = member.name, member.pace, self.attempt
            if member.hello.bundle == member.bundle:  # it was loaded before
                pace.before = self._run.progress.usual_step_seconds
            asked, pace.behind = False, True  # a member of no group waits for none
            if attempt is not None and name in attempt.leases:
                pace.behind = attempt.lags(name, pace.at)
                asked = attempt.awaits(name)
            asked = asked or member.state == RESTORING or pace.away
            if asked or self._validation.awaits(name) or self.computing(name):
                pace.works(now)
                if pace.usual is None:
                    target = member.hello.target
                    if target not in first_steps:
                        first_steps[target] = roster.first_step(target)
                    pace.first = first_steps[target]
                if why := pace.stalled(now):
                    self._end(member, why)
            else:
                pace.rests(now)
        for member, why in self._lacked():
            self._end(member, why)

    def _held_up_by(self, attempt: Attempt, now: float) -> list[str]:
        """Members that others wait for, and that do nothing, by their own heartbeats.

        The round may go on without them before it is certain that they hang.
        """
        detection = attempt.straggler_detection
        if not detection.tells_of_company:
            return []
        paces = {name: self._run.roster[name].pace for name in attempt.members}
        limits = {name: pace.leave_seconds for name, pace in paces.items()}
        return [
            name
            for name in attempt.lacked(limits, now)
            if max(detection.alone(name), paces[name].idle_seconds(now)) >= limits[name]
        ]

    def _lacked(self) -> list[tuple[Member, str]]:
        """Members of the round that are in no call with others, where those wait.

        Where none waits for it a member has longer: all may be about the same.
        """
        attempt, roster = self.attempt, self._run.roster
        if attempt is None or not attempt.straggler_detection.tells_of_company:
            return []
        limits = {name: roster[name].pace.come_seconds for name in attempt.members}
        lacked = attempt.lacked(limits, self._run.now)
        found: list[tuple[Member, str]] = []
        for name, limit in limits.items():
            by, alone = lacked.get(name, ()), attempt.straggler_detection.alone(name)
            alone = min(alone, self._run.now - attempt.launched)
            if alone >= (limit if by else _ALONE * limit):
                found.append((roster[name], self._why(roster[name], by, alone)))
        return found

    def _why(self, member: Member, by: Collection[str], seconds: float) -> str:
        at = member.pace.at
        where = "" if at is None else f" in {at.call!r}, behind step {at.steps}"
        others = counted(len(by), "other")
        return f"{others} waited for it in vain: for {seconds:.1f} s it is{where}"

    # When an exchange failed ----------------------------------------------------------

    def _accuse(self, member: Member, attempt: Attempt, message: GroupFailed) -> None:
        """A member could not exchange, and says who did not come."""
        attempt.reported.add(member.name)
        for rank in message.lost:
            if rank < len(attempt.members):
                accused = attempt.members[rank]
                attempt.suspects.setdefault(accused, set()).add(member.name)

    def _check_failed(self, now: float) -> None:
        """An exchange failed, and no member died: try again with the same members."""
        attempt = self.attempt
        limit = self._run.experiment.heartbeat_limit_seconds
        if attempt is None or attempt.failed_at is None:
            return
        if now - attempt.failed_at < limit:
            return
        if hung := self._hung(attempt):
            for member, why in hung:
                self._end(member, why)
        elif attempt.retries >= _MAX_RETRIES and attempt.suspects:
            name, why = self._conduct.to_go(attempt.members, attempt.suspects)
            self.drop(self._run.roster[name], why)
        else:
            self._again(attempt, "an exchange failed")

    def _hung(self, attempt: Attempt) -> list[tuple[Member, str]]:
        """Members that do and say nothing while others fail.

        At once those that most of the others lack; if nobody says whom it lacks, those
        that were silent again and again. Not those that wait for the others still: who
        fails at once unseats nobody.
        """
        roster, silent = self._run.roster, attempt.silent()
        lacked = _of_most(attempt.suspects, len(attempt.members) - 1)
        found = [roster[name] for name in silent if name in lacked]
        found = [m for m in found if m.pace.within(m.pace.come_seconds)]
        if found:
            since = self._run.now - attempt.launched
            return [(m, self._why(m, attempt.suspects[m.name], since)) for m in found]
        if attempt.suspects:
            return []  # who accuses alone would be left alone: `Conduct` decides
        often = [
            (roster[name], f"said nothing in {counted(times, 'attempt')} that failed")
            for name, times in silent.items()
            if times > _MAX_RETRIES
        ]
        return [(member, why) for member, why in often if member.pace.idle]

    def _again(self, attempt: Attempt, why: str) -> None:
        if attempt.retries > 2 * _MAX_RETRIES:
            raise StateMismatch(
                f"round {attempt.round} failed {attempt.retries} times: {why}; "
                "the workers' logs say what happened"
            )
        self._retry(attempt.again(self._run.progress.epoch + 1))


def _of_most(accused: Mapping[str, Set[str]], others: int) -> set[str]:
    """Those whom more than half of the others accuse."""
    return {name for name, those in accused.items() if 2 * len(those - {name}) > others}
