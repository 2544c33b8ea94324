"""The simulator: closed forms where there are any, and what failures do."""

from dataclasses import replace

import pytest
from helpers.models.bigram_numpy import bundle
from helpers.worlds.training_runs import experiment

from pcp.errors import StateMismatch
from pcp.training.simulate.network_model import World
from pcp.training.simulate.simulation import simulate

TAU, ROUNDS = 4, 6
STILL = World(
    workers=4,
    step_seconds=1.0,
    payload_bytes=6_000_000,
    state_bytes=12_000_000,
    bandwidth=1e6,
    round_trip=0.1,
    spread=0.0,
    jitter=0.0,
)


def _figures(folder, world, rounds=ROUNDS, seed=0, **keys):
    exp = experiment(folder, tau=TAU, heartbeat_limit_seconds=4.0, **keys)
    return simulate(exp, bundle(), world, rounds, seed)


@pytest.mark.parametrize("workers", [1, 2, 4, 32])
def test_an_undisturbed_round_is_steps_and_an_exchange(tmp_path, workers):
    figures = _figures(tmp_path, replace(STILL, workers=workers))
    share = 2 * (workers - 1) / workers
    trips = workers - 1 if workers < 32 else 5  # by the distance that they told
    exchange = share * 6.0 + trips * 0.1
    # The order and the report travel half a round trip each.
    assert figures.round_seconds == pytest.approx(TAU + exchange + 0.1, abs=1e-6)
    assert figures.sent_bytes == round(share * 6_000_000)
    assert figures.goodput == pytest.approx(TAU / figures.round_seconds, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "exchange"),
    [
        ({"meetings": 3}, 9.0 + 6 * 0.1),
        ({"every_step": True}, TAU * (9.0 + 3 * 0.1)),
        ({"in_background": True}, 9.3 - TAU),  # the rest of it is hidden by inner steps
        ({"in_background": True, "bandwidth": 1e7}, 0.0),
    ],
)
def test_exchanges_by_kind_of_algorithm(tmp_path, changes, exchange):
    figures = _figures(tmp_path, replace(STILL, **changes))
    assert figures.round_seconds == pytest.approx(TAU + exchange + 0.1, abs=1e-6)
    often = TAU if "every_step" in changes else 1
    assert figures.sent_bytes == often * 9_000_000


def test_a_seed_gives_the_same_run(tmp_path):
    world = replace(STILL, spread=0.2, jitter=0.1, lifetime=60.0)
    first, again = (_figures(tmp_path, world, seed=3) for _ in range(2))
    assert first == again
    assert first != _figures(tmp_path, world, seed=4)


def test_deaths_cost_goodput(tmp_path):
    world = replace(STILL, workers=8, restart=5.0)
    calm = _figures(tmp_path, world, rounds=30)
    stormy = _figures(tmp_path, replace(world, lifetime=120.0), rounds=30)
    assert stormy.deaths > 10
    assert 0.2 * calm.goodput < stormy.goodput < 0.95 * calm.goodput


def test_who_dies_without_a_word_is_waited_for(tmp_path):
    """By the real heartbeat limit: a run is slower for it."""
    world = replace(STILL, lifetime=60.0)
    told = _figures(tmp_path, world, rounds=30)
    untold = _figures(tmp_path, replace(world, silent=1.0), rounds=30)
    assert untold.seconds > told.seconds


def test_a_quorum_leaves_the_slow_out(tmp_path):
    world = replace(STILL, workers=16, spread=0.5)
    waiting = _figures(tmp_path, world)
    going = _figures(tmp_path, world, quorum=8, grace_seconds=0.5)
    assert going.round_seconds < waiting.round_seconds


def test_a_run_that_cannot_move_says_so(tmp_path):
    world = replace(STILL, lifetime=0.1)
    with pytest.raises(StateMismatch, match="die faster than a round can be made"):
        _figures(tmp_path, world)


def test_a_round_of_many_exchanges_is_waited_for(tmp_path):
    """Hundreds of them take longer than hundreds of inner steps, and it moves."""
    world = replace(STILL, step_seconds=1e-3, bandwidth=1e7, restart=0.5)
    exp = experiment(tmp_path, tau=500, heartbeat_limit_seconds=4.0)
    found = simulate(exp, bundle(), replace(world, every_step=True), rounds=1)
    exchanges = 500 * (0.9 + 2 * 0.1)  # by halving and doubling
    assert found.round_seconds == pytest.approx(0.5 + exchanges + 0.1, abs=1e-6)
