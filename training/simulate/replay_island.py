"""A member of a replayed run: the ranks of an island, or one whole worker."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from pcp.training.coordinator.island import joined_prepared
from pcp.training.data.corpus import Corpus
from pcp.training.data.lease_pool import Range
from pcp.training.simulate.replay_worker import ReplayWorker
from pcp.training.storage.island_parts import joined_digest
from pcp.training.storage.safetensors_io import Arrays, digest
from pcp.training.storage.state_names import shared_part
from pcp.training.trainer.interface import Trainer
from pcp.training.wire.messages import (
    Commit,
    Prepared,
    RoundStart,
)

Snapshots = Sequence[Arrays]
"""Values of the ranks, by coordinate."""


class ReplayIsland:
    """The ranks of a member by coordinate, each with the worker's own code."""

    def __init__(self, trainers: Sequence[Trainer], corpus: Corpus) -> None:
        self.ranks = [ReplayWorker(trainer, corpus) for trainer in trainers]
        if len(self.ranks) > 1:
            for at, rank in enumerate(self.ranks):
                rank.state.place("replayed", at)

    @property
    def trainer(self) -> Trainer:
        """The trainer of the first rank."""
        return self.ranks[0].trainer

    @property
    def committed(self) -> int | None:
        """The round whose state it holds."""
        return self.ranks[0].state.committed

    @property
    def address(self) -> str:
        """The address of its first rank."""
        return self.ranks[0].address

    def snapshots(self) -> Snapshots:
        """The snapshots of its ranks."""
        return [rank.state.snapshot()[1] for rank in self.ranks]

    def whole(self) -> Arrays:
        """The state of its ranks, joined."""
        return self.trainer.parts.join(self.snapshots())

    def holds(self, round_: int, recorded: str | None) -> bool:
        """Whether it has the committed state of a round."""
        if self.committed != round_:
            return False
        parts = [digest(shared_part(arrays)) for arrays in self.snapshots()]
        return recorded is None or joined_digest(parts) == recorded

    def take(
        self, states: Snapshots | None, round_: int, index: int, seed: int
    ) -> None:
        """Hold a round's state, of each rank; None: made from the seed."""
        for at, rank in enumerate(self.ranks):
            rank.state.forget()
            if states is None:
                rank.trainer.fresh(seed)
            else:
                rank.trainer.restore(states[at], index)
            rank.state.hold(round_)

    def replace(self, trainers: Sequence[Trainer], corpus: Corpus) -> None:
        """Use another program, with the present state."""
        for rank, trainer in zip(self.ranks, trainers, strict=True):
            rank.replace(trainer, corpus)

    def learn(self, lease: Sequence[Range], steps: int) -> None:
        """Make inner steps from the present state, unless they are made."""
        for rank in self.ranks:
            rank.learn(lease, steps)

    def stop(self) -> None:
        """Stop making steps and waiting for peers; from any thread."""
        for rank in self.ranks:
            rank.stop()

    def close(self) -> None:
        """Release devices and endpoints."""
        for rank in self.ranks:
            rank.close()


def make(
    islands: Sequence[ReplayIsland], orders: Sequence[RoundStart]
) -> list[Prepared]:
    """Make a round by all ranks of all members at once, and commit it.

    `orders` are the members'; returns each member's `Prepared`.
    """
    size = len(islands[0].ranks)
    with ThreadPoolExecutor(len(islands) * size) as pool:
        try:
            pending = [
                [
                    pool.submit(ReplayWorker.make, rank, _of_rank(order, islands, at))
                    for at, rank in enumerate(island.ranks)
                ]
                for island, order in zip(islands, orders, strict=True)
            ]
            for done in as_completed([each for ranks in pending for each in ranks]):
                done.result()
        except BaseException:  # the others would wait; or Ctrl-C
            for island in islands:
                island.stop()
            raise
    prepared = [[done.result() for done in ranks] for ranks in pending]
    for island, reports in zip(islands, prepared, strict=True):
        for rank, report in zip(island.ranks, reports, strict=True):
            rank.state.adopt(
                Commit(round=report.round, epoch=report.epoch, digest=report.digest)
            )
    return [
        joined_prepared(reports, joined_digest([said.digest for said in reports]))
        for reports in prepared
    ]


def _of_rank(order: RoundStart, islands: Sequence[ReplayIsland], at: int) -> RoundStart:
    """The order of a rank, with the ranks at its coordinate, and its own island.

    The groups of the island have the epoch of those between islands.
    """
    own = islands[order.rank].ranks
    if len(own) == 1:
        return order
    changes = {
        "members": [island.ranks[at].address for island in islands],
        "island": [rank.address for rank in own],
        "inner_epoch": order.epoch,
    }
    return order.model_copy(update=changes)


Load = Callable[..., tuple[Trainer, str]]
"""A trainer for an experiment and a target, and the digest of its bundle.
For an island the third argument is the rank's coordinate.
"""
