"""The shepherd's rounds: give out leases, wait for all, commit or try again.

Everything about one round is in its `Attempt`. A round that lost a member goes
on with the others; one whose exchange failed although everybody lives is tried
again with the same members, and if that keeps failing, without the member that
the others cannot reach. A member slower than quorum, grace or deadline allow is left
out: its lease goes back to the pool, and it takes part in the next round; or what it
did comes late, and counts in a later one (`pcp.training.coordinator.stale_results`).
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pcp.errors import StateMismatch, counted
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.roster import Member
from pcp.training.coordinator.stale_results import Lateness
from pcp.training.coordinator.straggler_policy import slow_members
from pcp.training.data.lease_pool import LeasePool, Range
from pcp.training.observe.metrics import Round, summarise
from pcp.training.trainer import nonfinite
from pcp.training.wire.messages import (
    Commit,
    Computed,
    GroupFailed,
    Heartbeat,
    Learned,
    Prepared,
    RoundStart,
)

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd

_MAX_RETRIES = 3


def share(at_most: int, speed: float, fastest: float) -> int:
    """Inner steps of a member while the fastest makes `at_most` (DyLU)."""
    # The quotient first: v / v is 1, n * v / v may be less than n.
    return max(1, int(at_most * (speed / fastest)))


class Rounds:
    """Runs the rounds of a shepherd, one at a time."""

    own_clocks = False
    """Whether learners make inner steps outside of rounds."""

    def __init__(self, shepherd: "Shepherd") -> None:
        self._shepherd = shepherd
        self._ledger, self._experiment = shepherd.ledger, shepherd.experiment
        self._roster = shepherd.roster
        self._pool: LeasePool | None = None
        self.attempt: Attempt | None = None
        """The round under way."""
        self.newest: Round | None = None
        """The last round that was committed by this process."""
        self.nonfinite: list[str] = []
        """Whose losses in that round are not finite, a line each."""
        self._group: list[str] = []
        self.alone = False
        """A round has one member; other workers stand by."""
        self.meets = False
        """Members meet inside a round: who is slow shows in the others' waiting."""
        # pyright reads this file under two names, one for each side of the link.
        self._late = Lateness(self, self._experiment, self._ledger.progress)  # pyright: ignore

    @property
    def begun(self) -> bool:
        """Whether the samples are known: after the first bundle was made."""
        return self._pool is not None

    @property
    def pool(self) -> LeasePool:
        """The samples to give out."""
        if self._pool is None:
            raise StateMismatch("no program was made yet, so no data was opened")
        return self._pool

    @pool.setter
    def pool(self, pool: LeasePool) -> None:
        self._pool = pool

    @property
    def steps(self) -> int:
        """Inner steps of the next round: the experiment's, or the operator's."""
        return self._ledger.progress.steps or self._experiment.tau

    def exhausted(self) -> bool:
        """Whether no further round can begin: all are done, or the data is used up."""
        progress = self._ledger.progress
        rounds = progress.committed >= self._experiment.outer_loop_steps
        no_data = self.pool.available < self.pool.quantum and not self._late.members
        return not progress.outstanding and (rounds or no_data)

    def start(self, ready: list[Member]) -> None:
        """The first attempt of the next round."""
        ready = [member for member in ready if not self._late.busy(member.name)]
        if not ready:
            return
        progress = self._ledger.progress
        rank = self._rank_by(self._group)
        if self.alone:
            held = progress.outstanding
            ready = [min(ready, key=lambda m: (m.name not in held, rank(m)))]
        names = {member.name for member in ready}
        for name, lease in list(progress.outstanding.items()):
            if name not in names:
                self.give_back(name, lease)
        # Those who hold the state come first: rank 0 is whom others sync with.
        order = sorted(ready, key=rank)
        leases = progress.outstanding | self._late.leases()
        without = [m.name for m in order if m.name not in leases]
        steps = 0
        while without and not steps:
            steps = self.pool.steps_for(len(without), self.steps)
            without = without if steps else without[:-1]
        for name, share in self._steps(steps, without).items():
            leases[name] = self.pool.take(share)
        members = [m.name for m in order if m.name in leases]
        if not members:
            return
        leases = {name: leases[name] for name in members}
        again = bool(progress.outstanding or self._late.leases())
        again = again or members != self._group
        attempt = Attempt(
            round=progress.committed + 1,
            epoch=progress.epoch + again,
            members=members,
            leases=leases,
            began=self._shepherd.now(),
        )
        self._launch(attempt)

    def _steps(self, at_most: int, names: list[str]) -> dict[str, int]:
        """Inner steps of each of `names`, so that all of them end together (DyLU)."""
        speeds = {name: self._roster[name].speed for name in names}
        fastest = max((speed for speed in speeds.values() if speed), default=None)
        if not (self._experiment.uneven_steps and fastest):
            return dict.fromkeys(names, at_most)
        return {
            name: share(at_most, speed or fastest, fastest)
            for name, speed in speeds.items()
        }

    def _rank_by(self, group: list[str]) -> Callable[[Member], tuple[bool, int, int]]:
        """Holders of the state first, then as in the last group: it may stay."""
        places = {name: place for place, name in enumerate(group)}
        committed = self._shepherd.committed

        def rank(member: Member) -> tuple[bool, int, int]:
            place = places.get(member.name, len(group))
            return member.committed != committed, place, member.index

        return rank

    def lost(self, member: Member) -> None:
        """A member is gone; what it did in this round does not count."""
        # If it comes back it may be another process: that needs another group.
        self._group = []
        attempt = self.attempt
        self.forget(member)
        if attempt is not None and member.name in attempt.members:
            self.give_back(member.name, attempt.leases[member.name])
            self._retry(attempt.again(self._ledger.progress.epoch + 1, [member.name]))

    def give_up(self) -> None:
        """No lease that is held will be used: the state they belong to is lost."""
        for name in list(self._late.members):
            self.forget(self._roster[name])
        for name, lease in list(self._ledger.progress.outstanding.items()):
            self.give_back(name, lease)

    def forget(self, member: Member) -> None:
        """What a member did late is gone with the state that it held."""
        late = self._late.members.pop(member.name, None)
        lease = self._ledger.progress.late.get(member.name)
        if late is not None and lease is not None:
            self.give_back(member.name, lease)

    def busy(self, name: str) -> bool:
        """Between two rounds: whether a worker still makes steps that will count."""
        return self._late.busy(name)

    def join(self, name: str, lease: list[Range]) -> None:
        """A late member takes part in the round under way, if others still compute."""
        attempt = self.attempt
        if attempt is None or not attempt.slow:
            return
        epoch = self._ledger.progress.epoch + 1
        self._retry(attempt.again(epoch, joining={name: lease}))

    def _launch(self, attempt: Attempt) -> None:
        self._ledger.append(
            "round",
            round=attempt.round,
            epoch=attempt.epoch,
            members=attempt.members,
            leases=attempt.leases,
        )
        self.attempt, self._group = attempt, list(attempt.members)
        attempt.launched = self._shepherd.now()
        addresses = [self._roster[name].address for name in attempt.members]
        longest = attempt.longest(self.pool.quantum)
        for rank, name in enumerate(attempt.members):
            order = RoundStart(
                round=attempt.round,
                epoch=attempt.epoch,
                members=addresses,
                rank=rank,
                lease=attempt.leases[name],
                steps=attempt.steps(name, self.pool.quantum),
                longest=longest,
                **self._particulars(attempt, name),
            )
            self._roster[name].send(order)

    def _particulars(self, attempt: Attempt, name: str) -> dict[str, Any]:
        """What else is in a member's order."""
        if name not in self._late.members:
            return {}
        return {"carried": True, "weight": self._late.weight(name, attempt.round)}

    def _retry(self, attempt: Attempt) -> None:
        """The next attempt of a round, if anybody is left who can make it."""
        self.attempt = None
        holders = {
            member.name for member in self._roster.holders(self._shepherd.committed)
        }
        attempt.members.sort(key=lambda name: name not in holders)
        if attempt.members and attempt.members[0] in holders:
            self._shepherd.log(
                f"round {attempt.round} goes on with "
                f"{counted(len(attempt.members), 'worker')} (epoch {attempt.epoch})"
            )
            self._launch(attempt)

    def give_back(self, name: str, lease: list[Range]) -> None:
        """A worker's lease returns to the pool."""
        self._ledger.append("returned", round=self._shepherd.committed + 1, worker=name)
        self.pool.give_back(lease)

    def on_prepared(self, member: Member, message: Prepared) -> None:
        """A member is done; when all are, the round is committed."""
        attempt = self.attempt
        if attempt is None or not attempt.accept(member.name, message):
            return
        # To be prepared it must have had the state of the round before.
        member.committed = attempt.round - 1
        if attempt.first:
            member.measured(message.steps, message.compute_seconds)
        if not attempt.complete:
            return
        if len(attempt.digests) > 1:
            self._again(attempt, "members prepared different states")
        else:
            self.commit(attempt)

    def on_group_failed(self, member: Member, message: GroupFailed) -> None:
        """A member could not exchange; wait a little for who turns out dead."""
        attempt = self.attempt
        current = attempt and (attempt.round, attempt.epoch)
        if attempt is None or current != (message.round, message.epoch):
            return
        self._shepherd.log(f"worker {member.index}: {message.reason}")
        attempt.failed_at = attempt.failed_at or self._shepherd.now()
        if message.lost is not None and message.lost < len(attempt.members):
            attempt.suspects.append(attempt.members[message.lost])

    def on_computed(self, member: Member, message: Computed) -> None:
        """A member has done its inner steps."""
        attempt = self.attempt
        current = attempt and (attempt.round, attempt.epoch)
        if attempt and current == (message.round, message.epoch):
            attempt.computed.setdefault(member.name, self._shepherd.now())
        else:
            self._late.computed(member, message)

    def on_heartbeat(self, member: Member, message: Heartbeat) -> None:
        """A member may say how far it is in a round with exchanges in between."""
        attempt, said = self.attempt, message.meeting
        if attempt is None or not self.meets:
            return
        here = said and (said.round, said.epoch) == (attempt.round, attempt.epoch)
        attempt.waits.heard(member.name, said if here else None, self._shepherd.now())

    def on_learned(self, member: Member, message: Learned) -> None:
        """Steps outside of a round, which here nobody was asked for."""

    def check(self, now: float) -> None:
        """What time does to the round under way."""
        attempt = self.attempt
        if attempt is None:
            return
        if slow := slow_members(attempt, self._experiment, self.meets, now):
            self._leave_out(attempt, slow, now)
        self._check_failed(now)

    def _leave_out(self, attempt: Attempt, names: list[str], now: float) -> None:
        """The round goes on without those who are too slow."""
        for name in names:
            member = self._roster[name]
            steps = attempt.steps(name, self.pool.quantum)
            member.measured(steps, now - attempt.began)  # it is slower than this
            self._shepherd.log(f"worker {member.index} is left out: not done in time")
            if self._late.counts:
                self._ledger.append("late", round=attempt.round, worker=name)
                self._late.keep(attempt, name)
            else:
                self.give_back(name, attempt.leases[name])
        self._retry(attempt.again(self._ledger.progress.epoch + 1, names))

    def _check_failed(self, now: float) -> None:
        """An exchange failed, and nobody was seen to die: try the same again."""
        attempt = self.attempt
        limit = self._experiment.heartbeat_limit_seconds
        if (
            attempt is None
            or attempt.failed_at is None
            or now - attempt.failed_at < limit
        ):
            return
        if attempt.retries >= _MAX_RETRIES and attempt.suspects:
            worst = max(attempt.suspects, key=attempt.suspects.count)
            self._shepherd.drop(self._roster[worst], "its peers cannot reach it")
        else:
            self._again(attempt, "an exchange failed")

    def _again(self, attempt: Attempt, why: str) -> None:
        if attempt.retries > 2 * _MAX_RETRIES:
            raise StateMismatch(
                f"round {attempt.round} failed {attempt.retries} times: {why}; "
                "the workers' logs say what happened"
            )
        self._retry(attempt.again(self._ledger.progress.epoch + 1))

    def _nonfinite(self, record: Round, names: list[str]) -> Iterator[str]:
        """What is to be said of the losses of a committed round."""
        for member, name in zip(record.members, names, strict=True):
            if line := nonfinite.said(member, name, record.round):
                yield line

    def _seconds(self, attempt: Attempt, busy: float) -> float:
        """How long a round took of which a member says it was busy that long."""
        return max(self._shepherd.now() - attempt.began, busy)

    def commit(self, attempt: Attempt) -> None:
        """All members are prepared with one state: it counts from now on."""
        (digest,) = attempt.digests
        prepared = [attempt.prepared[name] for name in attempt.members]
        # A round that was computed while no shepherd lived took its own time.
        busy = [p.compute_seconds + p.exchange_seconds for p in prepared]
        record = summarise(
            attempt.round,
            attempt.epoch,
            prepared,
            workers=[self._roster[name].index for name in attempt.members],
            tokens_before=self._ledger.progress.tokens,
            seconds=self._seconds(attempt, max(busy)),
            learning_rate=self._experiment.learning_rate,
            now=time.time(),
        )
        # Before it counts: who is killed in between has it kept once more, as after
        # a rewind; the other way round the record would be lost.
        self._shepherd.observer.keep(record)
        self._ledger.append(
            "commit",
            round=attempt.round,
            epoch=attempt.epoch,
            digest=digest,
            consumed=attempt.leases,
            tokens=record.tokens,
            loss=record.loss,
        )
        self.attempt = None
        self._late.settle(attempt.members)
        shares = self._shepherd.validation.shares(attempt, last=self.exhausted())
        for name in attempt.members:
            member = self._roster[name]
            member.committed = attempt.round
            member.send(
                Commit(
                    round=attempt.round,
                    epoch=attempt.epoch,
                    digest=digest,
                    validate_share=shares.get(name),
                )
            )
        self.newest = record
        self.nonfinite = list(self._nonfinite(record, attempt.members))
        for line in self.nonfinite:
            self._shepherd.log(line)
        self._shepherd.observer.round(record)
        due = attempt.round % self._experiment.checkpoint_every == 0
        if due or self.exhausted():
            self._shepherd.saver.save(attempt.members)
