"""The rounds of a run: give out leases, wait for all members, commit or try again.

The state of one round is in its `Attempt`. A round that lost a member goes on with the
others. A round whose exchange failed although all members live is tried again with
them, and if that keeps failing, without the member that the others cannot reach.

`Rounds` is the common part of all policies: a round is committed when all members of
its newest attempt have prepared one state. `round_policy` is where policies differ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pcp.errors import counted
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.effects import Keep, Refuse, ReportRound
from pcp.training.coordinator.guards.conduct import Conduct, quarantined
from pcp.training.coordinator.guards.digest_vote import vote
from pcp.training.coordinator.guards.progress_policy import ProgressPolicy
from pcp.training.coordinator.guards.value_guard import ValueGuard, claim
from pcp.training.coordinator.roster import CORRECTED, Member, distance_of
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.data.lease_pool import LeasePool, Range
from pcp.training.storage.round_record import Round, summarise
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Commit,
    Computed,
    GroupFailed,
    Heartbeat,
    Prepared,
)

_UNSERVED = 2
"""Checkpoints that fail by one member before it is removed."""
_REPLAYS = 2
"""How often an exchange is made again where members prepare different states."""


def share(at_most: int, speed: float, fastest: float) -> int:
    """The inner steps of a member while the fastest one makes `at_most` (DyLU)."""
    # The quotient first: v / v is 1, n * v / v may be less than n.
    return max(1, int(at_most * (speed / fastest)))


class Rounds(ProgressPolicy):
    """The rounds of a run, one at a time."""

    def __init__(
        self, run: RunState, pool: LeasePool, validation: Validation, saver: Saver
    ) -> None:
        self._run, self._validation, self._saver = run, validation, saver
        self.pool = pool
        """The samples to give out."""
        self.guard = ValueGuard(run.experiment.norm_limit)
        self.attempt: Attempt | None = None
        """The round under way."""
        self.newest: Round | None = None
        """The last attempt that this process committed."""
        self.nonfinite: list[str] = []
        """Members whose parts of that round did not count, a line each."""
        self._left: list[str] = []
        self._group: list[str] = []
        self._conduct = Conduct()
        self._made_again: int | None = None
        """The round that began anew because no member's part of it could count."""
        self.handlers: dict[type[Message], Callable[[Member, Any], None]] = {
            Computed: self._on_computed,
            Prepared: self._on_prepared,
            GroupFailed: self._on_group_failed,
            Heartbeat: self._on_heartbeat,
        }
        """The handlers of messages about a member's part of the round."""

    def renew_pool(self) -> None:
        """Make the pool of the samples that are left, by the ledger."""
        taken = self._run.progress.taken()
        self.pool = LeasePool(self.pool.total, self.pool.quantum, taken)

    def give_back(self, name: str, lease: list[Range]) -> None:
        """A worker's lease returns to the pool."""
        self._run.append("returned", round=self._run.committed + 1, worker=name)
        self.pool.give_back(lease)

    def _on_computed(self, member: Member, message: Computed) -> None:
        """A member has done its inner steps: they count, or the member is left out."""
        attempt = self.attempt
        if attempt is None or not self._current(message):
            return
        name = member.name
        if name not in attempt.leases:
            return
        steps = attempt.steps(name, self.pool.quantum)
        if name not in attempt.computed and attempt.first:
            member.pace.made(steps, self._run.now - attempt.launched)
        attempt.computed.setdefault(name, self._run.now)
        if fault := self.guard.part(name, message, steps):
            # Behind all steps: a bad loss of another's last step may be in its change.
            attempt.faults[name] = (message.nonfinite_step or math.inf, fault)
        if attempt.faults and not (self.exchanges_inside and attempt.slow):
            self.reject(attempt, attempt.first_faults())

    def _on_prepared(self, member: Member, message: Prepared) -> None:
        """A member has prepared its state; when all have, the round is committed."""
        attempt = self.attempt
        if attempt is None or not attempt.accept(member.name, message):
            return
        member.committed = attempt.round - 1  # or it could not be prepared
        member.exchanged(message, len(attempt.members))
        if attempt.first:
            member.measured(message.steps, message.compute_seconds)
        if fault := self._fault(attempt, member.name, message):
            self.reject(attempt, {member.name: fault})
        elif attempt.complete:
            self._conclude(attempt)

    def _fault(self, attempt: Attempt, name: str, said: Prepared) -> str:
        """The fault for which a member's report does not count; "" if there is none."""
        if not math.isfinite(said.loss):
            return f"loss is {said.loss}"
        return claim(attempt, name, said, self._run.sample_tokens, self.pool.quantum)

    def _conclude(self, attempt: Attempt) -> None:
        """All members are prepared: commit if they have one state that may count."""
        verdict = vote(attempt.members, attempt.prepared, attempt.before)
        attempt.digest = verdict.digest
        if verdict.digest is None:
            self._divided(attempt, verdict.wrong)
            return
        said = [attempt.prepared[name] for name in attempt.members]
        right = [message for message in said if message.digest == verdict.digest]
        if fault := self.guard.result(right):
            self._spoiled(attempt, fault)
            return
        for name in list(attempt.aside):
            fault = "the result was right only without it"
            self._left_out(attempt, name, fault)
            self._wrong(name, attempt.round, fault)
        self.guard.committed(right)
        self.commit(attempt)

    def _divided(self, attempt: Attempt, wrong: Sequence[str]) -> None:
        """Members prepared different states, and no state has most votes."""
        if wrong:
            fault = "it prepared another state than the others"
            self.reject(attempt, dict.fromkeys(wrong, fault))
        elif attempt.retries < _REPLAYS:
            self._again(attempt, "members prepared different states")
        else:
            who = ", ".join(self._who(name) for name in attempt.members)
            self._halt(attempt, f"{who} prepare different states, time after time")

    def _spoiled(self, attempt: Attempt, fault: str) -> None:
        """The result may not count, and no member reports why: leave one out."""
        everyone = [*attempt.members, *attempt.aside]
        attempt.cleared += attempt.aside
        left = [name for name in attempt.members if name not in attempt.cleared]
        if len(everyone) == 1:
            self.reject(attempt, dict.fromkeys(everyone, fault))
            return
        if not left:
            who = f"whoever is left out of round {attempt.round}"
            self._halt(attempt, f"{fault}, {who}")
            return
        suspect, back = left[0], dict(attempt.aside)
        self._run.log(
            f"round {attempt.round}: {fault}: it is made again without "
            f"{self._who(suspect)}"
        )
        tried = attempt.again(self._run.progress.epoch + 1, [suspect], back)
        tried.aside = {suspect: attempt.leases[suspect]}
        self._retry(tried)

    def reject(self, attempt: Attempt, faults: Mapping[str, str]) -> None:
        """Go on with the round without these members' parts, for these faults.

        Where all of several have the same first one, nobody is known to have made it.
        """
        self.attempt = None  # who is quarantined leaves no round under way
        rest = attempt.again(self._run.progress.epoch + 1, list(faults))
        for name, fault in faults.items():
            self._left_out(attempt, name, fault)
            if rest.members or len(faults) == 1:
                self._wrong(name, attempt.round, fault)
        if rest.members:
            self._retry(rest)
            return
        self._group = []
        for name in list(attempt.aside):
            self.without(attempt, name)
        whose = "; ".join(f"{self._who(n)}: {fault}" for n, fault in faults.items())
        if self._made_again != attempt.round:
            self._made_again = attempt.round
            self._run.log(f"round {attempt.round} is begun anew: {whose}")
        else:
            self._pause(f"no part of round {attempt.round} may count ({whose})")

    def _left_out(self, attempt: Attempt, name: str, fault: str) -> None:
        """A member's part does not count: log it, and return its lease."""
        run = self._run
        self._left.append(
            f"{self._who(name)} is left out of round {attempt.round}: {fault}"
        )
        run.log(self._left[-1])
        self.without(attempt, name)

    def _wrong(self, name: str, round_: int, fault: str) -> None:
        """Note a member's fault; quarantine the member if it is not its first one."""
        run = self._run
        if name not in run.roster or not self._conduct.wrong(name, round_):
            return
        if len(run.roster.ready()) < 2:
            return  # without other members the run can only pause
        run.append("quarantined", worker=name, round=round_, reason=fault)
        run.log(
            f"{self._who(name)} is quarantined: {fault}, and not for the first time"
        )
        member = run.roster[name]
        run.do(Refuse(member.connection, quarantined(name, fault)))
        self.drop(member, "quarantined")

    def unserved(self, member: Member) -> None:
        """A member did not hand out its state: the second time it is removed."""
        member.unserved += 1
        if member.unserved < _UNSERVED:
            return
        fault = "the state that it says it holds cannot be fetched from it"
        self._wrong(member.name, self._run.committed, fault)
        if member.name in self._run.roster:
            self._end(member, fault)  # the same process would report the same again

    def _halt(self, attempt: Attempt, why: str) -> None:
        """No state is known to be right: return the samples, and pause."""
        self.attempt, self._group = None, []
        for name in (*attempt.members, *attempt.aside):
            self.without(attempt, name)
        self._pause(why)

    def _pause(self, why: str) -> None:
        self._run.append("order", action="pause", reason=why)
        self._run.log(
            f"the run is paused, and holds round {self._run.committed}: {why}. "
            "`pcp control resume` tries again; `pcp control cancel`, and --resume with "
            "other settings, as a smaller learning_rate, goes on from the checkpoint"
        )

    def resumed(self) -> None:
        """An operator lets the run go on: forget the usual norms."""
        self._made_again = None
        self.guard.forget()

    def _who(self, name: str) -> str:
        roster = self._run.roster
        return f"{roster[name].who} ({name})" if name in roster else name

    def _on_heartbeat(self, member: Member, message: Heartbeat) -> None:
        """A member may say how far it is in a round: whom others wait for is known."""
        attempt, said = self.attempt, message.meeting
        if attempt is None:
            return
        here = said and (said.round, said.epoch) == (attempt.round, attempt.epoch)
        attempt.straggler_detection.heard(
            member.name,
            said if here else None,
            self._run.now,
            begun=said is not None and said.round == attempt.round,
            alone=said.alone if said is not None and not here else None,
        )

    def _on_group_failed(self, member: Member, message: GroupFailed) -> None:
        """A member could not exchange. Wait a little: a peer may turn out dead."""
        attempt = self.attempt
        if attempt is None or not self._current(message):
            return
        self._run.log(f"{member.who}: {message.reason}")
        if self._lacks_steps(attempt, member.name, message):
            self._go_on_without(attempt, member.name)
            return
        if attempt.failed_at is None:
            attempt.failed_at = self._run.now
        self._accuse(member, attempt, message)

    def _lacks_steps(self, attempt: Attempt, name: str, said: GroupFailed) -> bool:
        """Whether a member was to bring steps made before, and says it has none."""
        own = [rank for rank, n in enumerate(attempt.members) if n == name]
        return said.lost == own and "carried" in self._particulars(attempt, name)

    def _go_on_without(self, attempt: Attempt, name: str) -> None:
        """A member has not the steps that it was to bring: nobody need wait for them.

        It dropped them, as they were not finite, when it said so of an older attempt.
        """
        self.attempt = None
        self.without(attempt, name)
        rest = attempt.again(self._run.progress.epoch + 1, [name])
        if rest.members:
            self._retry(rest)
        for left in () if rest.members else list(rest.aside):
            self.without(attempt, left)

    def commit(self, attempt: Attempt) -> None:
        """Commit the state that the members have prepared."""
        digest = attempt.agreed
        run, record = self._run, self._recorded(attempt)
        # Figures before the commit: a shepherd that is killed in between keeps them
        # again, as after a rewind; in the other order they would be lost.
        run.do(Keep(record))
        more: dict[str, Any] = {"metrics": record.metrics} if record.metrics else {}
        for name in attempt.members:
            said = attempt.prepared[name]
            seconds = said.compute_seconds + said.data_wait_seconds
            run.roster[name].pace.says(said.steps, seconds)
        paces = (run.roster[name].pace.usual for name in attempt.members)
        if usual := max((pace for pace in paces if pace is not None), default=None):
            more["usual_step_seconds"] = usual
        run.append(
            "commit",
            round=attempt.round,
            epoch=attempt.epoch,
            digest=digest,
            consumed=dict(attempt.leases),
            tokens=record.tokens,
            loss=record.loss,
            **more,
        )
        self.attempt = None
        self._settle(attempt)
        self._tell(attempt, digest)
        self.newest = record
        self.nonfinite, self._left = self._left, []
        run.do(ReportRound(record))
        due = attempt.round % run.experiment.checkpoint_every == 0
        if due or self.exhausted():
            here = [name for name in attempt.members if name in run.roster]
            self._saver.save(here)

    def _tell(self, attempt: Attempt, digest: str) -> None:
        """Tell the members of a commit, with their shares of the validation."""
        shares = self._validation.shares(attempt, last=self.exhausted())
        wrong = [n for n in attempt.members if attempt.prepared[n].digest != digest]
        right = next(name for name in attempt.members if name not in wrong)
        source = self._run.roster[right].address
        for name in attempt.members:
            member = self._run.roster[name]
            member.committed = attempt.round
            if name in wrong:
                member.state, member.committed = CORRECTED, None
                member.corrected_at = self._run.now
            commit = Commit(
                round=attempt.round,
                epoch=attempt.epoch,
                digest=digest,
                validate_share=shares.get(name),
                source=source if name in wrong else None,
            )
            self._run.send(member, commit)
        for name in wrong:
            fault = f"it prepared another state of round {attempt.round} than most"
            self._run.log(f"{self._who(name)}: {fault}, and takes theirs")
            self._wrong(name, attempt.round, fault)

    def _recorded(self, attempt: Attempt) -> Round:
        """The figures of a round that all members have prepared."""
        run = self._run
        prepared = [attempt.prepared[name] for name in attempt.members]
        # A round that was computed while no shepherd lived took its own time.
        busy = max(p.compute_seconds + p.exchange_seconds for p in prepared)
        return summarise(
            attempt.round,
            attempt.epoch,
            prepared,
            workers=[run.roster[name].index for name in attempt.members],
            tokens_before=run.progress.tokens,
            seconds=self._seconds(attempt, busy),
            now=0.0,
        )

    def _seconds(self, attempt: Attempt, busy: float) -> float:
        """How long a round took, if its members were busy for so long."""
        return max(self._run.now - attempt.began, busy)

    def _current(self, message: Computed | GroupFailed) -> bool:
        """Whether a message is about the attempt under way."""
        attempt = self.attempt
        return attempt is not None and (
            (attempt.round, attempt.epoch) == (message.round, message.epoch)
        )

    def _launch(self, attempt: Attempt) -> None:
        run, roster = self._run, self._run.roster
        far = distance_of([roster[name] for name in attempt.members])
        more: dict[str, Any] = {} if far is None else {"distance": list(far)}
        run.append(
            "round",
            round=attempt.round,
            epoch=attempt.epoch,
            members=list(attempt.members),
            leases=dict(attempt.leases),
            **more,
        )
        self.attempt, self._group = attempt, list(attempt.members)
        self.guard.begin()
        attempt.launched = run.now
        addresses = [roster[name].address for name in attempt.members]
        orders = attempt.orders(
            addresses,
            self.pool.quantum,
            lambda name: {
                "term": run.term,
                "distance": far,
                **self._particulars(attempt, name),
            },
        )
        for name, order in zip(attempt.members, orders, strict=True):
            roster[name].pace.ordered(run.now)
            run.send(roster[name], order)

    def _goes_on(self, attempt: Attempt) -> None:
        """Log that a round is attempted again with these members."""
        self._run.log(
            f"round {attempt.round} goes on with "
            f"{counted(len(attempt.members), 'worker')} (epoch {attempt.epoch})"
        )
        self._launch(attempt)
