"""A `Restore` frees a rank that waits for others, and the next order finds it ready."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.worlds.communicators import eventually

from pcp.errors import CollectiveAborted
from pcp.runtime import Endpoint
from pcp.training.storage.island_parts import WHOLE
from pcp.training.wire.messages import Restore, RoundStart, Shutdown
from pcp.training.worker.worker import Identity, Worker

SEED = Restore(round=0, source=None)


class Trainer:
    """Of one parameter; it notes how often the state is made from the seed."""

    parts, axes_inside = WHOLE, ()

    def __init__(self) -> None:
        self.shared = {"w": np.zeros(2, np.float32)}
        self.private: dict[str, Any] = {}
        self.frozen: dict[str, Any] = {}
        self.restored = 0

    def inner(self) -> dict[str, Any]:
        return {}

    def fresh(self, seed: int) -> None:
        self.restored += 1

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def peer() -> Iterator[Endpoint]:
    """Rank 1, which listens, and comes to no group by itself."""
    with Endpoint.listen() as endpoint:
        yield endpoint


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Rank 0 in its own thread; the test is the thread that reads messages."""
    made = Worker(Identity("w", "127.0.0.1", 9), Endpoint.listen(), Trainer, print)
    trainer: Any = Trainer()
    made._state.load(trainer)
    made._state.hold(0)
    monkeypatch.setattr(made._runner.inner_steps, "expect", lambda order: None)
    for act in ("start", "close"):
        monkeypatch.setattr(made._link, act, lambda: None)
    own = threading.Thread(target=made.run)
    own.start()
    yield made
    made._received(Shutdown(reason="the test is over"))
    own.join(30)
    assert not own.is_alive()


def order(worker: Worker, peer: Endpoint, epoch: int) -> RoundStart:
    """Of round 1, for rank 0 of two."""
    return RoundStart(
        round=1, epoch=epoch, members=[worker._endpoint.address, peer.address],
        rank=0, lease=[(0, 8)], steps=2, longest=2,
    )  # fmt: skip


def forming(worker: Worker) -> Any:
    """For whom it waits in a formation."""
    return worker._endpoint.awaited()


def test_a_rank_in_a_formation_heeds_a_restore_and_comes_to_the_next_group(
    worker: Worker, peer: Endpoint
) -> None:
    """The other member hangs: the formation would go on for a minute."""
    trainer: Any = worker._state.trainer
    worker._received(order(worker, peer, 7))
    eventually(lambda: forming(worker), 30)
    worker._received(SEED)
    eventually(lambda: trainer.restored == 1, 30)
    worker._received(SEED)  # the source of the first one was gone, say
    eventually(lambda: trainer.restored == 2, 30)
    worker._received(order(worker, peer, 8))
    members = order(worker, peer, 8).members
    with peer.form(8, members, 1, 30) as group:
        assert group.world_size == 2


def test_an_order_that_a_restore_overtakes_forms_no_group(
    worker: Worker, peer: Endpoint
) -> None:
    """Its thread has taken the order, and is not at the formation yet."""
    group, overtaken = worker._runner.group, order(worker, peer, 7)
    group.heed(overtaken)
    group.heed(SEED)
    group.timeout = 30.0
    with pytest.raises(CollectiveAborted, match="replaces 7"):
        group.form(overtaken)


def test_a_rank_in_a_formation_heeds_a_shutdown(worker: Worker, peer: Endpoint) -> None:
    """It ends, as the fixture sees, and not when the formation is given up."""
    worker._runner.group.timeout = 600.0
    worker._received(order(worker, peer, 7))
    eventually(lambda: forming(worker), 30)


@pytest.mark.parametrize(
    ("message", "at"),
    [
        (Restore(round=0, source=None), 7),
        (Shutdown(reason="over"), 7),
        (RoundStart, 8),
    ],
    ids=["restore", "shutdown", "order"],
)
def test_no_group_of_an_island_is_formed_for_an_order_that_is_over(
    worker: Worker, peer: Endpoint, message: Any, at: int
) -> None:
    """The thread that reads comes first: the other one has the order, and forms yet."""
    ranks = [worker._endpoint.address, peer.address]
    inside = {"island": ranks, "inner_epoch": 7}
    first = order(worker, peer, 7).model_copy(update=inside)
    newer = first.model_copy(update={"epoch": 8, "inner_epoch": at})
    group = worker._runner.group
    group.heed(first)
    group.heed(newer if message is RoundStart else message)
    worker._state.place("x", 0)
    with pytest.raises(CollectiveAborted, match="begin anew"):
        group._steps.form(first, first.inner_epoch, 30.0)
