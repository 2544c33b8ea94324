"""When the state of a run is saved; `shepherd.checkpointer` saves it.

While the state is fetched no new round begins, so that all members still hold the same
state. The state is written to the disk during the next rounds; a checkpoint that is due
meanwhile is skipped.
"""

import math
from collections.abc import Sequence

from pcp.training.coordinator.effects import (
    Gather,
    LookOnDisk,
    Prove,
    ReportCheckpoint,
    Write,
)
from pcp.training.coordinator.events import Gathered, NotSaved, OnDisk, Proved, Written
from pcp.training.coordinator.roster import Member
from pcp.training.coordinator.run_state import RunState
from pcp.training.storage import nonfinite

_RETRY_SECONDS = 5.0
_SHOWN_SECONDS = 60.0
"""For so long a holder that has handed out its state is not doubted."""
_NEXT_SECONDS = 1.0
"""So long after one holder is asked for its state, the next one is asked too; the
time doubles with each that is asked and has not answered."""


class Saver:
    """Asks for the checkpoints of a run, one at a time."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.blocking = False
        """A state is being fetched: no round may begin."""
        self.busy = False
        """A checkpoint is being fetched or written."""
        self.looking = False
        """A `LookOnDisk` has no answer yet."""
        self.saved: int | None = None
        """The last round that is on disk."""
        self.path: str | None = None
        """Where."""
        self._rests_until = 0.0
        self._proved: dict[str, float] = {}
        """Members that have handed out a committed state, and when."""
        self._asked: dict[str, float] = {}
        """Members that were asked for the committed state, and when; no answer yet."""
        self._failed: set[str] = set()
        """Members that were asked and did not hand it out."""
        self._asked_round: int | None = None
        """The round whose state they were asked for."""

    @property
    def resting(self) -> bool:
        """Whether a checkpoint failed just now: the next one waits for a moment."""
        return self._run.now < self._rests_until

    def save(self, names: Sequence[str]) -> None:
        """Begin a checkpoint of the committed round from these members."""
        run, progress = self._run, self._run.progress
        if self.busy:
            run.log("the disk is slower than the rounds: a checkpoint is left out")
            return
        self.busy = self.blocking = True
        info = {
            "run": run.name,
            "digest": progress.digest,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "seed": run.experiment.seed,
            "frozen": run.frozen,
            "data": {
                "digest": progress.begin["data"],
                "samples_per_epoch": progress.begin["samples_per_epoch"],
                "taken": progress.spent,
            },
        }
        addresses = [run.roster[name].address for name in names]
        run.do(
            Gather(progress.committed, progress.digest, tuple(names), addresses, info)
        )

    def proves(self, holders: Sequence[Member]) -> bool:
        """Whether no round may begin until one of these has handed out its state.
        A digest alone proves nothing: where none of the holders has ever handed out a
        state, one of them must do so once before the run goes on from it.
        """
        if not holders or any(member.name in self._proved for member in holders):
            return False
        run = self._run
        self._begin_asking()
        known = self._asked.keys() | self._failed
        rest = [member for member in holders if member.name not in known]
        last = max(self._asked.values(), default=-math.inf)
        patience = _NEXT_SECONDS * 2 ** max(len(self._asked) - 1, 0)
        if rest and run.now - last >= patience:
            self._ask(min(rest, key=self._may_lack))
        elif not (rest or self._asked or self.resting):
            self._failed = set()  # all are asked once more
        return True

    def doubt(self, holder: Member) -> None:
        """Ask a holder for its state, which a member could not take from it.

        Not again for a while, once it has handed it out.
        """
        self._begin_asking()
        shown = self._proved.get(holder.name, -math.inf)
        if holder.name in self._asked or self.resting:
            return
        if self._run.now - shown > _SHOWN_SECONDS:
            self._ask(holder)

    def _begin_asking(self) -> None:
        if self._asked_round != self._run.committed:
            self._asked, self._failed = {}, set()
            self._asked_round = self._run.committed

    def _may_lack(self, member: Member) -> tuple[int, bool]:
        """The order in which holders are asked: who may not hand it out comes last.

        A member that prepared the round under the last shepherd adopts it by its own
        thread, which may hang.
        """
        return member.unserved, member.hello.committed != self._run.committed

    def _ask(self, member: Member) -> None:
        run = self._run
        self._asked[member.name] = run.now
        asked = (run.committed, run.progress.digest, member.name, [member.address])
        run.do(Prove(*asked))

    def proved(self, event: Proved) -> bool:
        """Note an answer to a `Prove`; False where it is a fault of the member."""
        asked = self._asked.pop(event.member, None)
        if event.fault is None:
            self._proved[event.member] = self._run.now
            return True
        if event.round != self._run.committed or asked is None:
            return True  # the run is further, and so may the member be
        self._failed.add(event.member)
        self._proved.pop(event.member, None)
        self._rests_until = self._run.now + _RETRY_SECONDS
        self._run.log(f"the state is not proved: {event.fault}")
        return event.at is None

    def look(self, round_: int) -> None:
        """Ask whether an earlier process saved a round."""
        self.looking = True
        self._run.do(LookOnDisk(round_))

    def seen(self, event: OnDisk) -> bool:
        """Note the answer to a `LookOnDisk`; whether the round is there."""
        self.looking = False
        for line in event.damaged:
            self._run.log(f"{line}; it is made again")
        if event.path is not None:
            self.saved, self.path = event.round, event.path
        return event.path is not None

    def gathered(self, event: Gathered) -> None:
        """All members have handed out their state; rounds go on while it is written."""
        self.blocking = False
        self._proved |= dict.fromkeys(event.members, self._run.now)
        shared = ("parameters.", "outer.")
        known = self._run.nonfinite
        if new := [
            n for n in event.nonfinite if n.startswith(shared) and n not in known
        ]:
            reason = f"{nonfinite.listed(new)} of round {event.round} is not finite"
            self.failed(NotSaved(reason))
            return
        if event.nonfinite:
            self._run.log(
                f"the state of round {event.round} is not finite, and is saved as it "
                f"is: {nonfinite.listed(event.nonfinite)}"
            )
        self._run.do(Write(event.round, event.members))

    def written(self, event: Written) -> None:
        """The checkpoint is on the disk."""
        self.busy, self.saved, self.path = False, event.round, event.path
        for member in self._run.roster:
            member.unserved = 0
        self._run.append(
            "checkpoint",
            round=event.round,
            path=event.path.rpartition("/")[2],
            members=list(event.members),
        )
        self._run.log(f"checkpoint of round {event.round} in {event.path}")
        self._run.do(ReportCheckpoint(event.round, event.path))

    def failed(self, event: NotSaved) -> None:
        """A checkpoint failed: a member died, or the disk is full.

        The next one may work.
        """
        self.blocking = self.busy = False
        self._rests_until = self._run.now + _RETRY_SECONDS
        self._run.log(f"no checkpoint this time: {event.reason}")
