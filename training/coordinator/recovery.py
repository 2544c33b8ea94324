"""Recovery: the source of the committed state, and the rewind when there is none.

A worker that joins fetches the state from a holder. After a restart of the shepherd
workers name the state that they hold in their `Hello`; it counts if its digest is the
ledger's. If no worker came back with the committed round within the grace period, the
run goes back to the newest round that a worker or a valid checkpoint still has; the
ledger has a line of that, and the samples of the lost rounds are given out again.

From a checkpoint each worker takes the state that the rank of its index saved. If the
number of workers is not that of the checkpoint, all take their shares of the whole
again (`pcp.training.storage.checkpoint_resharding`), before the first round begins.
"""

from collections.abc import Sequence
from typing import Any

from pcp.errors import counted
from pcp.training.coordinator.effects import FindCheckpoint, LoadWeights
from pcp.training.coordinator.events import Found, SavedState
from pcp.training.coordinator.roster import (
    COMPILING,
    READY,
    RESTORING,
    WAITING,
    Member,
)
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.storage.ledger_state import CHECKPOINT, SEED, WEIGHTS
from pcp.training.wire.messages import (
    Hello,
    Lacking,
    Ready,
    Restore,
)

_OURS = (CHECKPOINT, WEIGHTS)
"""Sources in the ledger that this process's own endpoint serves."""


class Recovery:
    """Finds a source for the committed state."""

    def __init__(self, run: RunState, rounds: Rounds) -> None:
        self._run, self._rounds = run, rounds
        self._headless_since: float | None = None
        self.searching = False
        """A `FindCheckpoint` has no answer yet."""

    def verified_round(self, hello: Hello) -> int | None:
        """The round of the state that a worker holds, by its hello and the ledger."""
        progress = self._run.progress
        if hello.run != self._run.name:
            return None
        prepared, committed = hello.prepared, hello.committed
        if prepared and prepared.round == progress.committed:
            if prepared.digest == progress.digest:
                return prepared.round  # its Welcome told it to adopt that round
        if committed is None or not self._run.holds(committed, hello.digest):
            return None
        return committed

    def on_ready(self, member: Member, message: Ready) -> None:
        """A worker holds the state of a round."""
        run = self._run
        if member.state == COMPILING:
            return  # sent before its connection broke: its Hello is newer
        if not run.holds(message.round, message.digest):
            run.log(
                f"{member.who} holds a state of round {message.round} that "
                "this run has left: it takes another"
            )
            self._holds_nothing(member)
            return
        restored = member.state == RESTORING
        member.state, member.committed = READY, message.round
        if restored:
            run.append(
                "joined",
                sync=False,  # counted with the round that the worker takes part in
                worker=member.name,
                index=member.index,
                round=message.round,
                target=member.hello.target,
                bundle=member.bundle,
                **member.taking,
            )

    def on_lacking(self, member: Member, message: Lacking) -> None:
        """A worker could not fetch a state from the source of its `Restore`."""
        if member.state == COMPILING:
            return
        member.lacked += 1
        member.pace.rests(self._run.now)  # it did what it was told, in vain
        self._holds_nothing(member)

    def _holds_nothing(self, member: Member) -> None:
        """The member holds no state of this run."""
        self._rounds.lost(member)
        member.state, member.committed = WAITING, None

    def assign_source(self, member: Member) -> None:
        """Send a waiting worker the source of the state, if there is one."""
        run = self._run
        holders = run.roster.holders(run.committed)
        if self._rounds.goes_on_from(member.committed):
            member.state = READY
        elif run.served_now() is not None:
            # Before any holder: only the checkpoint has this worker's own state.
            self._restore_saved(member)
        elif holders:
            keep = {"keep": True} if self._fresh(member) else {}
            # A member that could not reach one holder gets another one the next time,
            # also if there are more or fewer holders by then.
            at, last = member.lacked, member.taking.get("source")
            if member.lacked and holders[at % len(holders)].name == last:
                at += 1
            source = holders[at % len(holders)]
            self._restore(member, source.address, source=source.name, **keep)
        elif run.committed == 0:
            self._restore(member, None, source=SEED)

    def tick(self) -> None:
        """Find sources for the waiting members; rewind when no holder can come."""
        run, roster = self._run, self._run.roster
        self._let_go()
        stranded = self._rounds.needs_holder() and not roster.present(run.committed)
        waiting = False
        for member in roster:
            if member.state == READY and stranded:
                member.state = WAITING  # the other members were to bring it up to date
            if member.state == WAITING:
                waiting = True
                self.assign_source(member)
        waiting = waiting and any(member.state == WAITING for member in roster)
        if not self._rounds.stuck(waiting):
            self._headless_since = None
        elif self._headless_since is None:
            self._headless_since = run.now
        elif run.now - self._headless_since > run.grace:
            self._headless_since, self.searching = None, True
            run.do(FindCheckpoint(run.committed))

    def _let_go(self) -> None:
        """Release a state that the run has left behind, once no worker fetches it."""
        saved = self._run.served
        if saved is None or saved.round == self._run.committed or self._taken():
            return
        self._run.stop_serving()

    def _taken(self) -> bool:
        """Whether a worker fetches the state that the shepherd itself serves."""
        return any(
            member.state == RESTORING and member.taking["source"] in _OURS
            for member in self._run.roster
        )

    def redistributed(self, ready: Sequence[Member]) -> bool:
        """Whether the workers' own state of a checkpoint has been redistributed.

        If the number of workers is not the one it was served for, all restore it again,
        shared out among them.
        """
        run, saved = self._run, self._run.served_now()
        indices = [member.index for member in ready]
        if saved is None or not saved.workers or indices == run.parts:
            return True
        if self._rounds.left(saved, ready):
            return True
        if self._taken():
            return False  # or two kinds of members would never form a group
        run.log(
            f"the checkpoint of {counted(saved.workers, 'worker')} is shared out "
            f"among {len(ready)}: what is not sent yet or in flight adds up as before"
        )
        run.serve(saved, indices)
        for member in ready:
            self._restore_saved(member)
        return False

    def all_back(self) -> bool:
        """Whether all workers with a lease are ready, or had time to come back.

        One whose supervisor has started another process does not come back.
        """
        run = self._run
        ready = {member.name for member in run.roster.ready()}
        missing = set(run.progress.outstanding) - ready
        return run.age > run.grace or all(map(run.roster.replaced, missing))

    def _restore_saved(self, member: Member) -> None:
        """Send a member the shepherd's own endpoint as source."""
        run = self._run
        saved = run.served is not None and run.served.workers
        said: dict[str, Any] = {"source": CHECKPOINT if saved else WEIGHTS}
        if saved:
            said["parts"] = list(run.parts)
        self._restore(member, run.address_for(member), **said)

    def _restore(self, member: Member, address: str | None, **said: Any) -> None:
        """Send a `Restore`; `said` is the source as the ledger will name it."""
        self._rounds.forget(member)
        member.state, member.committed, member.taking = RESTORING, None, said
        keep, round_ = bool(said.get("keep")), self._run.committed
        self._run.send(member, Restore(round=round_, source=address, keep=keep))

    def _fresh(self, member: Member) -> bool:
        """Whether a worker that comes back may keep its own state.

        It holds a recent round of this history, under the same program.
        """
        held, limit = member.committed, self._run.experiment.rejoin_rounds
        if held is None or member.hello.bundle != member.bundle:
            return False
        return 0 < self._run.committed - held <= limit

    def target(self, saved: SavedState | None) -> int:
        """The newest round whose state a member, or this checkpoint, has."""
        return max(self._best_held(), saved.round if saved is not None else 0)

    def found(self, event: Found) -> None:
        """Rewind to the newest state that there is."""
        run, saved, best = self._run, event.saved, self.target(event.saved)
        self.searching = False
        for line in event.refused:
            run.log(line)
        if saved is not None and saved.round > self._best_held():
            run.serve(saved)
            run.tell_nonfinite(saved, f"the checkpoint of round {best}")
        elif best == 0 and run.first_values:
            run.do(LoadWeights())
        self._rounds.give_up()
        if best < run.committed:
            self._rewind(best)
        else:
            run.log(f"continuing from the checkpoint of round {best}")
        self._recut(saved)

    def _recut(self, saved: SavedState | None) -> None:
        """Log that the state was saved by islands of another mesh."""
        run = self._run
        if saved is None or saved is not run.served_now() or saved.digest is None:
            return
        if run.holds(saved.round, saved.digest):
            return
        mesh = " and ".join(run.experiment.shapes) or None
        how = f"islands of {mesh}" if mesh else "whole workers"
        run.log(f"the state of round {saved.round} goes to {how}: in other parts")
        run.append("recut", round=saved.round, digest=saved.digest, mesh=mesh)

    def _rewind(self, best: int) -> None:
        run = self._run
        run.log(f"no worker holds round {run.committed} any more: back to {best}")
        run.append("rewind", to=best, reason="state lost")
        if run.served is not None and run.served.round > best:
            run.stop_serving()  # another state may get its number
        for member in run.roster.ready():
            if (member.committed or 0) > best:
                member.state, member.committed = WAITING, None
        self._rounds.renew_pool()
        run.completing_since = None  # some rounds are made again

    def _best_held(self) -> int:
        """The newest round that a member holds; 0 if none."""
        held = [member.committed for member in self._run.roster]
        known = [r for r in held if r is not None and r <= self._run.committed]
        return max([0, *known])
