"""MeZO and forward gradients through compiled bundles: a seed and a scalar a step."""

from typing import Any

import numpy as np
import pytest
from helpers.models.closed_form import (
    BLOCK,
    RATE,
    batches,
    bundle,
    gradients,
    parameters,
    play,
)
from helpers.models.token_batches import pair

from pcp.runtime.communicator.communicator import Communicator
from pcp.training.trainer.load import load
from pcp.training.trainer.slope_exchange import direction

H, ROUNDS = 3, 2
KINDS = ["mezo{eps=0.0625,noise=signs}", "forward_gradient{noise=signs}"]


def data(members: int) -> list:
    return [batches(H * ROUNDS, worker) for worker in range(members)]


@pytest.fixture(
    scope="module", params=[KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow)]
)
def trainer(request: Any) -> Any:
    made = load(bundle("quadratic", request.param), "local-sync", None)
    yield made
    made.close()


def slope_and_direction(trainer: Any, number: int, batch: Any) -> tuple[float, Any]:
    """What @grad finds at zero parameters, and z as @grad_sync draws it."""
    word, zeros = np.array(number, np.int64), [np.zeros(BLOCK, np.float32)] * 2
    _, slope = trainer.functions.program["grad"](*zeros, *pair(batch), word)
    *z, _ = trainer.functions.program["grad_sync"](
        np.float32(1), word, np.zeros((), np.int32), np.float32(7)
    )
    return float(slope), np.concatenate(z).astype(np.float64)


def test_the_slope_of_a_quadratic_is_exact(trainer: Any) -> None:
    """s = ∇f · z: MeZO has no error in ε there, and the tangent has none anywhere."""
    (alone,) = Communicator.in_process(1)
    trainer.functions.program.communicator = alone
    found = []
    for number in (1, -5, 2**40 + 3):
        batch = batches(1, number % 7)[0]
        slope, z = slope_and_direction(trainer, number, batch)
        assert set(np.unique(z)) == {-1.0, 1.0}
        goal = np.concatenate([*gradients(batch).values()]).astype(np.float64)
        assert slope == pytest.approx(float(-goal @ z), rel=1e-3, abs=2e-3)
        found.append(z)
    again = slope_and_direction(trainer, 1, batches(1, 1)[0])[1]
    np.testing.assert_array_equal(found[0], again)
    for other in found[1:]:
        assert abs(np.mean(found[0] * other)) < 5 / np.sqrt(2 * BLOCK)
    alone.close()


@pytest.mark.parametrize("kind", KINDS)
def test_members_agree_and_a_log_of_slopes_replays_the_run(kind: str) -> None:
    """Every member has the same bits; so has a group that is given the slopes alone."""
    log: dict[tuple[int, int], tuple[Any, Any]] = {}
    code = bundle("quadratic", kind)
    found = play(code, data(2), ROUNDS, prepare=lambda t, rank: record(t, rank, log))
    for one, other in zip(*found, strict=True):
        assert parameters(one).tobytes() == parameters(other).tobytes()
    assert np.abs(parameters(found[0][-1])).max() > 0
    again = play(code, data(2), ROUNDS, prepare=lambda t, rank: replay(t, rank, log))
    assert parameters(again[0][-1]).tobytes() == parameters(found[0][-1]).tobytes()
    assert len(log) == 2 * H * ROUNDS


def record(trainer: Any, rank: int, log: dict) -> None:
    """Note each slope that goes out."""
    exchanged = trainer.exchange.exchanged

    def noted(found: Any, tokens: int) -> Any:
        log[rank, len([key for key in log if key[0] == rank])] = found, tokens
        return exchanged(found, tokens)

    trainer.exchange.exchanged = noted


def replay(trainer: Any, rank: int, log: dict) -> None:
    """Steps without a model: slopes from the log."""
    step = iter(range(H * ROUNDS))

    def from_log(batches: Any) -> list:
        trainer.steps.apply(trainer.exchange.exchanged(*log[rank, next(step)]))
        return []

    trainer.step = from_log


@pytest.mark.slow  # a program more
def test_two_members_sum_their_slopes_along_their_directions() -> None:
    """Against numpy, with directions as @grad_sync gives them one by one."""
    code = bundle("linear", KINDS[1])
    found = play(code, data(2), ROUNDS)
    alone = load(code, "local-sync", None)
    (single,) = Communicator.in_process(1)
    alone.functions.program.communicator = single
    theta = np.zeros(2 * BLOCK)
    for step in range(H * ROUNDS):
        total = np.zeros(2 * BLOCK)
        for rank in range(2):
            word = direction(0, step, rank)
            _, z = slope_and_direction(alone, word, batches(1, 0)[0])
            goal = np.concatenate([*gradients(data(2)[rank][step]).values()])
            total += 0.5 * float(goal.astype(np.float64) @ z) * z
        theta -= RATE * total
    alone.close()
    single.close()
    np.testing.assert_allclose(parameters(found[0][-1]), theta, rtol=0, atol=1e-3)


@pytest.mark.slow  # numbers alone
def test_normal_directions_have_unit_variance_and_estimate_the_gradient() -> None:
    """The mean of s z over many directions is the gradient, within 5 deviations."""
    made = load(bundle("linear", "forward_gradient"), "local-sync", None)
    (alone,) = Communicator.in_process(1)
    made.functions.program.communicator = alone
    batch, count = batches(1, 0)[0], 400
    goal = np.concatenate([*gradients(batch).values()]).astype(np.float64)
    pairs = [slope_and_direction(made, 17 * i, batch) for i in range(count)]
    every = np.array([z for _, z in pairs])
    assert every.mean() == pytest.approx(0, abs=5 / np.sqrt(every.size))
    assert every.var() == pytest.approx(1, abs=5 * np.sqrt(2 / every.size))
    estimate = np.mean([slope * z for slope, z in pairs], axis=0)
    deviation = np.sqrt((goal @ goal + goal**2) / count)
    assert np.abs((estimate - goal) / deviation).max() < 5
    assert estimate @ goal / (goal @ goal) == pytest.approx(1, abs=0.3)
    made.close()
    alone.close()
