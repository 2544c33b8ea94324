"""Who holds the committed state, and what to do when nobody does.

A worker that joins takes the state from a veteran. After a restart of the
shepherd the veterans say in their `Hello` what they hold; it counts if its
digest is the ledger's. If nobody came back with the committed round within the
grace period, the run goes back to the newest round that a worker or a valid
checkpoint still has; the ledger says so, and the samples of the lost rounds
are given out again.

From a checkpoint each worker takes what was saved by the rank that is its index. If
others come than as many as saved it, all take their shares of the whole once more
(`pcp.training.storage.checkpoint_resharding`), before the first round begins.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcp.errors import StateMismatch, counted
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.roster import COMPILING, READY, RESTORING, WAITING, Member
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.checkpoint_resharding import reshard
from pcp.training.storage.ledger import CHECKPOINT, SEED, WEIGHTS
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    INNER,
    OUTER,
    PARAMETER,
    PRIVATE,
    REPLICA,
    prefixed,
)
from pcp.training.trainer import nonfinite
from pcp.training.wire.messages import Hello, Lacking, Prepared, Ready, Restore

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd

_OURS = (CHECKPOINT, WEIGHTS)
"""What the ledger says of a state that this shepherd's own endpoint served."""


def snapshot_of(checkpoint: Checkpoint, indices: Sequence[int] | None = None) -> Arrays:
    """A checkpoint as the snapshot that workers restore from.

    Rank r of it is for the worker with index `indices[r]`, or r.
    """
    places = indices or range(len(checkpoint.workers))
    parameters = checkpoint.parameters
    arrays = shared_of(checkpoint)
    arrays |= prefixed(PARAMETER, [*parameters], parameters.values())
    for prefix, group in ((INNER, checkpoint.workers), (PRIVATE, checkpoint.private)):
        for rank, own in zip(places, group, strict=False):
            arrays |= prefixed(f"{prefix}{rank}/", [*own], own.values())
    return arrays


def shared_of(checkpoint: Checkpoint) -> Arrays:
    """The state whose digest a commit records."""
    parameters, outer = checkpoint.parameters, checkpoint.outer
    if any(name.startswith(REPLICA) for own in checkpoint.private for name in own):
        parameters = {}  # their mean, which nobody holds
    return prefixed(PARAMETER, [*parameters], parameters.values()) | prefixed(
        OUTER, [*outer], outer.values()
    )


class Recovery:
    """Finds a source for the committed state."""

    def __init__(self, shepherd: "Shepherd") -> None:
        self._shepherd = shepherd
        self._saved: Checkpoint | None = None
        """What this shepherd's own endpoint serves."""
        self._parts: list[int] = []
        """The indices of the workers among whom it is shared out."""
        self._headless_since: float | None = None
        if not shepherd.committed:
            self._serve_initial_weights()

    def claimed(self, hello: Hello) -> int | None:
        """The round whose state a worker holds, by what it says and the ledger."""
        progress = self._shepherd.ledger.progress
        if hello.run != self._shepherd.folder.name:
            return None
        prepared, committed = hello.prepared, hello.committed
        if prepared and prepared.round == progress.committed:
            if prepared.digest == progress.digest:
                return prepared.round  # our welcome told it to adopt that
        if committed is None or not self.holds(committed, hello.digest):
            return None
        return committed

    def holds(self, round_: int, digest: str | None) -> bool:
        """Whether this is a state of the run's history, as the ledger has it."""
        # The state before the first round is made from a seed, or loaded.
        return not round_ or self._shepherd.ledger.digest(round_) == digest

    def on_ready(self, member: Member, message: Ready) -> None:
        """A worker says what it holds."""
        shepherd = self._shepherd
        if member.state == COMPILING:
            return  # said before its connection broke: its hello says more
        if not self.holds(message.round, message.digest):
            shepherd.log(
                f"worker {member.index} holds a state of round {message.round} that "
                "this run has left: it takes another"
            )
            self._holds_nothing(member)
            return
        restored = member.state == RESTORING
        member.state, member.committed = READY, message.round
        if restored:
            shepherd.ledger.append(
                "joined",
                sync=False,  # it counts with the round that the worker takes part in
                worker=member.name,
                index=member.index,
                round=message.round,
                target=member.hello.target,
                bundle=member.bundle,
                **member.taking,
            )

    def on_lacking(self, member: Member, message: Lacking) -> None:
        """A worker could not fetch the state that it was told to take."""
        member.lacked += 1
        self._holds_nothing(member)

    def _holds_nothing(self, member: Member) -> None:
        """Nothing of this run, whatever it said before."""
        self._shepherd.rounds.lost(member)
        member.state, member.committed = WAITING, None

    def judge(self, member: Member) -> None:
        """Decide where a worker that waits for a state gets it, if that is known."""
        shepherd = self._shepherd
        round_ = shepherd.committed
        holders = shepherd.roster.holders(round_)
        held = member.committed
        older = shepherd.rounds.own_clocks and held is not None and held < round_
        if held == round_ or older:
            member.state = READY
        elif self._served(round_) is not None:
            # Before any holder: only here is what this worker had of its own.
            self._restore_saved(member)
        elif holders:
            keep = {"keep": True} if self._fresh(member) else {}
            # Who could not reach one of them has another the next time.
            source = holders[member.lacked % len(holders)]
            self._restore(member, source.address, source=source.name, **keep)
        elif round_ == 0:
            self._restore(member, None, source=SEED)

    def tick(self) -> None:
        """Judge those who wait; rewind when waiting is hopeless."""
        shepherd = self._shepherd
        self._let_go()
        rounds, own = shepherd.rounds, shepherd.rounds.own_clocks
        headless = not shepherd.roster.holders(shepherd.committed)
        for member in shepherd.roster:
            if member.state == READY and headless and not (rounds.attempt or own):
                member.state = WAITING  # it was to be brought up to date by the rest
            if member.state == WAITING:
                self.judge(member)
        stuck = any(member.state == WAITING for member in shepherd.roster)
        if own and headless and self._served(shepherd.committed) is None:
            stuck = bool(shepherd.roster.ready() or stuck) and not rounds.attempt
        if not stuck:
            self._headless_since = None
        elif self._headless_since is None:
            self._headless_since = shepherd.now()
        elif shepherd.now() - self._headless_since > shepherd.grace:
            self._headless_since = None
            self._rewind()

    def _let_go(self) -> None:
        """Hold no state that the run has left behind, once nobody takes it."""
        saved, shepherd = self._saved, self._shepherd
        if saved is None or saved.round == shepherd.committed:
            return
        if self._taken():
            return
        self._saved = None
        shepherd.endpoint.serve_snapshot(_nothing)

    def _taken(self) -> bool:
        """Whether somebody is taking what our own endpoint serves, just now."""
        return any(
            member.state == RESTORING and member.taking["source"] in _OURS
            for member in self._shepherd.roster
        )

    def settled(self, ready: Sequence[Member]) -> bool:
        """Whether what was the workers' own in a checkpoint is with somebody.

        If others came than it was served for, they all restore it once more, shared
        out among them.
        """
        shepherd = self._shepherd
        saved = self._served(shepherd.committed)
        indices = [member.index for member in ready]
        if saved is None or not saved.workers:
            return True
        rounds = shepherd.rounds
        begun = rounds.own_clocks and any(
            member.committed != saved.round or rounds.busy(member.name)
            for member in ready
        )
        if indices == self._parts or begun:
            return True
        if self._taken():
            return False  # or those who take it and those who have it never meet
        shepherd.log(
            f"the checkpoint of {counted(len(saved.workers), 'worker')} is shared out "
            f"among {len(ready)}: what is not sent yet or in flight adds up as before"
        )
        self._serve(saved, indices)
        for member in ready:
            self._restore_saved(member)
        return False

    def _served(self, round_: int) -> Checkpoint | None:
        """The state of a round, if this shepherd's own endpoint has it."""
        saved = self._saved
        return saved if saved is not None and saved.round == round_ else None

    def source(self, member: Member) -> str | None:
        """Where a member can fetch the committed state; None if nobody has it."""
        shepherd = self._shepherd
        for holder in shepherd.roster.holders(shepherd.committed):
            return holder.address
        if self._served(shepherd.committed) is not None:
            return _address_for(member, shepherd.endpoint.listening)
        return None

    def all_back(self) -> bool:
        """Whether everybody who holds a lease is ready, or had time to come."""
        shepherd = self._shepherd
        ready = {member.name for member in shepherd.roster.ready()}
        missing = set(shepherd.ledger.progress.outstanding) - ready
        return not missing or shepherd.age > shepherd.grace

    def prepared_by_all(self) -> bool:
        """Commit a round that was prepared by all when the last shepherd died."""
        shepherd, progress = self._shepherd, self._shepherd.ledger.progress
        if shepherd.rounds.own_clocks:
            return False  # a push that was prepared is simply merged again
        if set(progress.outstanding) != set(progress.members):
            return False  # it has a part in it whose lease was taken back since
        prepared: dict[str, Prepared] = {}
        for name in progress.outstanding:
            member = shepherd.roster[name] if name in shepherd.roster else None
            report = member.hello.prepared if member else None
            if member is None or report is None or member.state != READY:
                return False
            if (report.round, report.epoch) != (progress.committed + 1, progress.epoch):
                return False
            prepared[name] = report
        if len({report.digest for report in prepared.values()}) != 1:
            return False
        attempt = Attempt(
            round=progress.committed + 1,
            epoch=progress.epoch,
            members=list(prepared),
            leases=dict(progress.outstanding),
            began=shepherd.now(),
            prepared=prepared,
        )
        shepherd.log(f"round {attempt.round} was prepared by all: committing it")
        shepherd.rounds.commit(attempt)
        return True

    def _restore_saved(self, member: Member) -> None:
        """Let a member take what our own endpoint serves."""
        saved = self._saved is not None and self._saved.workers
        said: dict[str, Any] = {"source": CHECKPOINT if saved else WEIGHTS}
        if saved:
            said["parts"] = list(self._parts)
        here = _address_for(member, self._shepherd.endpoint.listening)
        self._restore(member, here, **said)

    def _restore(self, member: Member, address: str | None, **said: Any) -> None:
        """`said` is what the ledger will say about where the state is from."""
        self._shepherd.rounds.forget(member)
        member.state, member.committed, member.taking = RESTORING, None, said
        keep, round_ = bool(said.get("keep")), self._shepherd.committed
        member.send(Restore(round=round_, source=address, keep=keep))

    def _fresh(self, member: Member) -> bool:
        """Whether a worker that comes back may go on with what is its own.

        It holds a round of this history, not long ago, under the same program.
        """
        held, limit = member.committed, self._shepherd.experiment.rejoin_rounds
        if held is None or member.hello.bundle != member.bundle:
            return False
        return 0 < self._shepherd.committed - held <= limit

    def _rewind(self) -> None:
        shepherd, progress = self._shepherd, self._shepherd.ledger.progress
        best = self._best_held()
        saved, refused = checkpoints.newest(
            shepherd.folder.path, progress.committed, self._check
        )
        for line in refused:
            shepherd.log(line)
        if saved is not None and saved.round > best:
            self._serve(saved)
            best = saved.round
            self._tell_nonfinite(saved, f"the checkpoint of round {best}")
        elif best == 0:
            self._serve_initial_weights()
        shepherd.rounds.give_up()
        if best < progress.committed:
            shepherd.log(
                f"nobody holds round {progress.committed} any more: back to {best}"
            )
            shepherd.ledger.append("rewind", to=best, reason="state lost")
            for member in shepherd.roster.ready():
                if (member.committed or 0) > best:
                    member.state, member.committed = WAITING, None
            shepherd.renew_pool()
            shepherd.end.begun = False  # there are rounds to make again
        else:
            shepherd.log(f"continuing from the checkpoint of round {best}")

    def _best_held(self) -> int:
        """The newest round a member holds; 0 if none."""
        held = [member.committed for member in self._shepherd.roster]
        known = [r for r in held if r is not None and r <= self._shepherd.committed]
        return max([0, *known])

    def _check(self, saved: Checkpoint) -> None:
        expected = self._shepherd.ledger.digest(saved.round)
        if safetensors_io.digest(shared_of(saved)) != expected:
            raise StateMismatch(
                f"the checkpoint of round {saved.round} in "
                f"{self._shepherd.folder.path} is not the state the ledger committed"
            )

    def _serve(self, saved: Checkpoint, indices: Sequence[int] | None = None) -> None:
        self._saved = saved
        self._parts = list(range(len(saved.workers)) if indices is None else indices)
        arrays = snapshot_of(reshard(saved, len(self._parts)), self._parts)
        self._shepherd.endpoint.serve_snapshot(lambda: (saved.round, arrays))

    def _serve_initial_weights(self) -> None:
        if weights := self._shepherd.experiment.initial_weights:
            saved = Checkpoint(0, safetensors_io.read(weights), {})
            self._serve(saved)
            self._tell_nonfinite(saved, weights)

    def _tell_nonfinite(self, saved: Checkpoint, what: str) -> None:
        if names := checkpoints.nonfinite(saved):
            self._shepherd.log(f"{what} is not finite: {nonfinite.listed(names)}")


def _nothing() -> tuple[int, Arrays]:
    raise StateMismatch("the shepherd holds no state any more: the workers have it")


def _address_for(member: Member, listening: str) -> str:
    """Where a member reaches our endpoint: at the address that led it to the hub."""
    here, port = member.connection.here, listening.rpartition(":")[2]
    return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
