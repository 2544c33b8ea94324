"""A modelled world knows of its bundle what an exchange sends."""

from dataclasses import replace

import pytest
from helpers.models.bigram_numpy import bundle

from pcp.bundle import Bundle
from pcp.errors import ConfigError
from pcp.manifest import Collective, Function, TensorSpec
from pcp.training.simulate.network_model import World
from pcp.training_plan import EveryRound, EveryStep, Fragments, TrainingPlan
from pcp.wire import Distance

COUNT = 1000
TOLD = {"workers": 4, "step_seconds": 1.0, "bandwidth": 1e6, "round_trip": 0.1}
TABLE = 4 * 128 * 128
ROUNDS = EveryRound()
PAIRS = EveryRound(parameters="gossip", seed=0)


def _collective(kind="all_reduce", dtype="f32", axis="workers", **attributes):
    return Collective(
        shape=(COUNT,),
        dtype=dtype,
        kind=kind,
        axes=(axis,),
        bytes=4 * COUNT,
        attributes=attributes,
    )


def _manifest(*collectives, plan: TrainingPlan = ROUNDS, **functions):
    manifest = Bundle.from_bytes(bundle(), source="a test").manifest
    named = {f"{c.kind}_{i}": c for i, c in enumerate(collectives)}
    functions = {**manifest.functions, **functions}
    changes = {"collectives": named, "functions": functions, "training": plan}
    return manifest.model_copy(update=changes)


@pytest.mark.parametrize(
    ("collectives", "plan", "sent"),
    [
        ([_collective()], ROUNDS, 2 * 3 / 4 * 4000),
        ([_collective(), _collective()], ROUNDS, 2 * 3 / 4 * 8000),
        # A symbol of 4 bits for each, a scale for each 256 of them.
        ([_collective(codec="e3m0")], ROUNDS, 2 * 3 / 4 * (COUNT / 2 + 4 * 4)),
        ([_collective("all_gather", "i32")], ROUNDS, 3 * 4000),
        ([_collective(axis="pair")], PAIRS, 4000),
    ],
)
def test_what_a_worker_sends_is_what_its_collectives_say(collectives, plan, sent):
    world = World.of(_manifest(*collectives, plan=plan), **TOLD)
    assert world.sent_bytes(4) == sent
    trips = (1 if world.pairs else 3) + len(collectives) + 1
    assert world.exchange_seconds(4, Distance(0.0)) == pytest.approx(
        sent / 1e6 + trips * 0.1
    )
    assert world.exchange_seconds(1) == 0


@pytest.mark.parametrize(
    ("members", "payload", "far", "trips", "votes"),
    [
        (8, 100_000, False, 7, 1),  # few members, and near: a ring
        (8, 100_000, True, 3, 1),
        (64, 64 * 16_384, False, 6, 6),
        (64, 64 * 16_384 + 4, False, 63, 6),  # large chunks: a ring
        (64, 64 * 200_000, True, 6, 6),  # which far members' are not
        (64, 64 * 200_004, True, 63, 6),
        (65, 64 * 16_384, True, 7, 7),
        (4096, 4096 * 16_384, True, 12, 12),
    ],
)
def test_an_exchange_takes_the_schedule_that_a_run_takes(
    members, payload, far, trips, votes
):
    world = World(
        members, 1.0, payload, payload, bandwidth=1e6, round_trip=0.1, meetings=2
    )
    ordered = None if far else Distance(0.0)
    sent = 2 * (members - 1) / members * payload / 1e6
    seconds = sent + (trips + 2 * votes) * 0.1
    assert world.exchange_seconds(members, ordered) == pytest.approx(seconds)
    coded = replace(world, coded=True)
    ring = sent + (members - 1 + 2 * votes) * 0.1
    assert coded.exchange_seconds(members, ordered) == pytest.approx(ring)


def test_small_sums_among_many_pass_each_edge_of_the_tree():
    world = World(100, 1.0, 10_000, 0, bandwidth=1e6, round_trip=0.1, meetings=1)
    sent = 7 * 2 * 99 / 100 * 0.01
    assert world.exchange_seconds(100) == pytest.approx(sent + (7 + 7) * 0.1)


@pytest.mark.parametrize(
    ("plan", "waited"),
    [
        (ROUNDS, 6.5),
        (EveryStep(), 10 * 6.4),  # and no comparison of states
        (Fragments(count=2), 6.5 - 5),
        (EveryRound(overlap=True), 6.5 - 5),
        (EveryRound(overlap=True, parameters="replica"), 6.5 - 5),
    ],
)
def test_inner_steps_hide_an_exchange_that_runs_beside_them(plan, waited):
    """6 MB of each at 1 MB/s, and 5 or 4 round trips; the ten steps take 5 s."""
    world = World.of(
        _manifest(_collective(), plan=plan), **TOLD, payload_bytes=4_000_000
    )
    assert world.waited_seconds(4, steps=10, computed=5) == pytest.approx(waited)
    assert world.waited_seconds(4, steps=10, computed=90) == pytest.approx(
        0 if plan.in_background else waited
    )


@pytest.mark.parametrize("collectives", [[], [_collective("permute")]])
def test_a_bundle_that_does_not_say_it_wants_to_be_told(collectives):
    manifest = _manifest(*collectives)
    with pytest.raises(ConfigError, match="--payload BYTES"):
        World.of(manifest, **TOLD)
    world = World.of(manifest, **TOLD, payload_bytes=10)
    assert (world.payload_bytes, world.gathered_bytes) == (10, 0)


def test_a_payload_stands_for_all_that_is_sent():
    gathers = _manifest(_collective("all_gather"))
    assert World.of(gathers, **TOLD, payload_bytes=100).sent_bytes(4) == 150


def test_a_newcomer_fetches_parameters_and_every_state():
    """Also where there is no outer step, but an exchange in every step."""
    rounds = World.of(_manifest(_collective()), **TOLD)
    assert rounds.state_bytes == 3 * TABLE  # with the inner and the outer momentum
    residue = TensorSpec(name="r", role="private", shape=(COUNT,), dtype="bf16")
    synced = Function(inputs=(residue,), results=(residue,))
    manifest = _manifest(_collective(), plan=EveryStep(), grad_sync=synced)
    world = World.of(manifest, **TOLD)
    assert world.state_bytes == 3 * TABLE + 2 * COUNT
    assert world.every_step
    assert not rounds.every_step
    del manifest.functions["outer_step"]
    fewer = replace(world, state_bytes=2 * TABLE + 2 * COUNT)
    assert World.of(manifest, **TOLD) == fewer
