"""The simulator: closed forms where there are any, and what failures do."""

from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.models.bigram_numpy import BATCH, bundle
from helpers.worlds.training_runs import experiment

from pcp.errors import StateMismatch
from pcp.training.coordinator.effects import Append
from pcp.training.data.lease_pool import merged, size
from pcp.training.simulate.coordinator_meter import CoordinatorMeter
from pcp.training.simulate.modelled_network import ModelledNetwork
from pcp.training.simulate.network_model import World
from pcp.training.simulate.simulation import simulate
from pcp.training.storage.round_record import Round

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


@pytest.mark.slow  # a long run
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


ISLANDS = replace(STILL, workers=4, ranks=4, inside_seconds=0.25)


def test_a_round_of_islands_is_steps_with_exchanges_inside_and_a_ring_a_shard(tmp_path):
    figures = _figures(tmp_path, ISLANDS)
    exchange = 9.0 + 3 * 0.1  # each rank's part among the four of its coordinate
    steps = TAU * (1.0 + 0.25)
    assert figures.round_seconds == pytest.approx(steps + exchange + 0.1, abs=1e-6)
    assert (figures.sent_bytes, figures.ranks) == (9_000_000, 4)
    assert figures.goodput == pytest.approx(TAU / figures.round_seconds, rel=0.02)


def test_an_island_is_as_fast_as_its_slowest_rank(tmp_path):
    world = replace(ISLANDS, workers=1, spread=0.3)
    alone = _figures(tmp_path, replace(world, ranks=1), seed=5)
    four = _figures(tmp_path, world, seed=5)
    model = ModelledNetwork(world, 5, 1.0, "a test")
    factors = [place.factor for place in model.places]
    assert max(factors) > factors[0]
    for figures, factor in ((alone, factors[0]), (four, max(factors))):
        seconds = TAU * (factor + 0.25) + 0.1
        assert figures.round_seconds == pytest.approx(seconds, abs=1e-6)


def test_an_island_that_lost_a_rank_is_out_of_the_round_and_comes_back(
    tmp_path, monkeypatch
):
    """The ledger of the real coordinator has each sample once."""
    lines = list[Append]()
    step = CoordinatorMeter.step

    def kept(meter, event, now):
        effects = step(meter, event, now)
        lines.extend(effect for effect in effects if isinstance(effect, Append))
        return effects

    monkeypatch.setattr(CoordinatorMeter, "step", kept)
    world = replace(ISLANDS, lifetime=600.0, restart=5.0, state_bytes=1_000_000)
    figures = _figures(tmp_path, world, rounds=40)
    used = [line.fields["consumed"] for line in lines if line.kind == "commit"]
    sizes = [len(consumed) for consumed in used]
    ranges = [each for one in used for lease in one.values() for each in lease]
    assert len(used) == 40
    assert size(merged(ranges)) == size(ranges) == sum(sizes) * TAU * BATCH
    assert figures.deaths > 5
    assert 3 in sizes
    assert sizes.count(4) > len(sizes) / 2
    back = [b for a, b in pairwise(sizes) if a < 4]
    assert 4 in back
    calm = _figures(tmp_path, ISLANDS, rounds=40)
    assert 0.5 * calm.goodput < figures.goodput < 0.95 * calm.goodput


def test_uneven_steps_are_those_that_a_worker_has_time_for(tmp_path):
    """Each reports its own lease; goodput is of what each could have made."""
    world = replace(STILL, spread=0.3, round_trip=0.01)
    told: list[Round] = []
    keys = {"tau": 20, "heartbeat_limit_seconds": 4.0, "uneven_steps": True}
    exp = experiment(tmp_path, **keys)
    figures = simulate(exp, bundle(), world, 4, seed=1, told=told.append)
    places = ModelledNetwork(world, 1, 1.0, "a test").places
    factors = [place.factor for place in places]
    fitting = [int(20 * (min(factors) / factor)) for factor in factors]
    assert min(fitting) < 15
    even, *uneven = [[member.steps for member in record.members] for record in told]
    assert even == [20] * 4
    assert all(sorted(steps) == sorted(fitting) for steps in uneven)
    exchange = 9.0 + 0.01 * 3  # the slowest's steps, and then the sum
    slowest = max(n * factor for n, factor in zip(fitting, factors, strict=True))
    assert told[-1].seconds == pytest.approx(slowest + exchange + 0.01, abs=1e-6)
    could = sum(figures.seconds / factor for factor in factors)
    made = 4 * 20 + 3 * sum(fitting)
    assert figures.goodput == pytest.approx(made / could)
