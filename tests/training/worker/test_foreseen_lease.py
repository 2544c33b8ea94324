"""The batches of the next lease are read before it comes, and any other lease's are."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.worlds.communicators import eventually

from pcp.training.data.dataset import Batch
from pcp.training.wire.messages import RoundStart
from pcp.training.worker.inner_steps import InnerSteps

BATCH, STEPS, AHEAD = 2, 3, 2
SIZE = BATCH * STEPS


class Corpus:
    """Notes the first position of each batch that is read."""

    ahead, readers = AHEAD, 1

    def __init__(self) -> None:
        self.seen: list[int] = []

    def read(self, positions: np.ndarray) -> Batch:
        self.seen.append(int(positions[0]))
        return Batch({"x": positions}, positions)


def order(*lease: tuple[int, int], **more: Any) -> RoundStart:
    return RoundStart(
        round=1,
        epoch=1,
        members=["a", "b"],
        rank=0,
        lease=list(lease),
        steps=STEPS,
        longest=STEPS,
        **more,
    )


@pytest.fixture
def steps():
    trainer = SimpleNamespace(batch=BATCH)
    state: Any = SimpleNamespace(trainer=trainer, work=None, partial_round=None)
    made = InnerSteps(state, print)
    corpus: Any = Corpus()
    made.corpus = corpus
    yield made
    made.close()


def seen(steps: InnerSteps) -> list[int]:
    corpus: Any = steps.corpus
    return corpus.seen


def test_the_next_lease_is_read_ahead_once(steps):
    steps.foresee(order((0, SIZE)))
    eventually(lambda: seen(steps) == [2 * SIZE, 2 * SIZE + BATCH], 10)
    steps.expect(order((2 * SIZE, 3 * SIZE)))
    batches = steps._read_from(order((2 * SIZE, 3 * SIZE)), 0)
    taken = [int(batches.take().positions[0]) for _ in range(STEPS)]
    assert taken == [2 * SIZE, 2 * SIZE + BATCH, 2 * SIZE + 2 * BATCH]
    assert seen(steps) == taken, "each is read once"


def test_another_lease_is_read_when_it_comes(steps):
    steps.foresee(order((0, SIZE)))
    steps.expect(order((5 * SIZE, 6 * SIZE)))
    batches = steps._read_from(order((5 * SIZE, 6 * SIZE)), 0)
    taken = [int(batches.take().positions[0]) for _ in range(STEPS)]
    assert taken == [5 * SIZE + i * BATCH for i in range(STEPS)]


@pytest.mark.parametrize(
    "said", [order((0, BATCH), (8, 8 + 2 * BATCH)), order((0, SIZE), carried=True)]
)
def test_nothing_is_guessed_from_leases_that_came_back(steps, said):
    steps.foresee(said)
    assert steps._expected is None
