"""NoLoCo and eager updates through compiled bundles: replicas that differ by design."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.models.closed_form import (
    BLOCK,
    NAMES,
    RATE,
    batches,
    bundle,
    gradients,
    play,
    replica,
)
from helpers.worlds.training_cluster import Crew, Hasty, load_bundle
from helpers.worlds.training_runs import experiment

from pcp.passes.training.outer.spec import Eager
from pcp.runtime.program.gossip_pair import partners
from pcp.training.storage.snapshots import snapshot_of

H, ROUNDS = 3, 4


def data(members: int) -> list:
    return [batches(H * ROUNDS, worker) for worker in range(members)]


def progress(members: int) -> np.ndarray:
    """[round, member, parameter] of what inner steps do, wherever they begin."""
    moves = np.zeros((ROUNDS, members, 2 * BLOCK))
    for member, mine in enumerate(data(members)):
        for step, batch in enumerate(mine):
            gradient = np.concatenate([*gradients(batch).values()])
            moves[step // H, member] -= RATE * gradient.astype(np.float64)
    return moves


def noloco_by_hand(members: int, seed: int) -> np.ndarray:
    """[round, member, parameter] of φ, with the pairs that a group of epoch 0 draws."""
    alpha, beta, gamma = 0.5, 0.7, 0.7
    phi, delta = np.zeros((2, members, 2 * BLOCK))
    found = []
    for number, move in enumerate(progress(members)):
        new, velocity = phi.copy(), delta.copy()
        for member, other in enumerate(partners(members, seed, number)):
            pair = [member] if other is None else [member, other]
            pull = phi[pair].mean(0) - phi[member]
            push = alpha * delta[member] + beta * move[pair].mean(0)
            velocity[member] = push + gamma * pull
            new[member] = phi[member] + velocity[member]
        phi, delta = new, velocity
        found.append(phi)
    return np.array(found)


@pytest.mark.parametrize("members", [3, 4])
def test_noloco_is_its_three_lines(members: int) -> None:
    """An odd number leaves one alone in each round."""
    found = play(bundle("linear", "noloco"), data(members), ROUNDS, watch=replica)
    wanted = noloco_by_hand(members, 0).transpose(1, 0, 2)
    np.testing.assert_allclose(np.array(found), wanted, rtol=0, atol=1e-5)


def test_the_mean_of_the_replicas_does_not_depend_on_the_pairs() -> None:
    """Heavy ball on the mean progress; the replicas themselves do depend on them."""
    code, velocity, phi = bundle("linear", "noloco"), 0.0, 0.0
    found = np.array(play(code, data(4), ROUNDS, watch=replica))
    other = noloco_by_hand(4, 5).transpose(1, 0, 2)
    assert np.abs(found - other).max() > 1e-3
    for number, move in enumerate(progress(4)):
        velocity = 0.5 * velocity + 0.7 * move.mean(0)
        phi = phi + velocity
        np.testing.assert_allclose(found[:, number].mean(0), phi, rtol=0, atol=1e-5)


def eager(options: str, members: int) -> np.ndarray:
    code = bundle("linear", f"eager{{{options}}}")
    return np.array(play(code, data(members), ROUNDS, watch=replica))


def growth(gamma: float, beta: float, members: int, a: float = 1.0) -> float:
    """The three lines as a matrix on (θ, θ before, b); a is how far a round goes."""
    now, before = a / members, a * (1 - 1 / members)
    reach = gamma * (1 + beta)
    lines = [
        [1 - reach * now, -reach * before, -gamma * beta**2],
        [1, 0, 0],
        [now, before, beta],
    ]
    return float(np.abs(np.linalg.eigvals(lines)).max())


@pytest.mark.parametrize("members", [2, 4, 32, 1000])
def test_the_defaults_of_eager_are_stable(members: int) -> None:
    found = [
        growth(Eager().lr, Eager().momentum, members, a)
        for a in np.linspace(0.02, 1, 50)
    ]
    assert max(found) < 0.98


@pytest.mark.parametrize(("members", "found"), [(2, 0.97), (4, 1.14), (32, 1.27)])
def test_diloco_s_own_step_is_not_stable_with_many(members: int, found: float) -> None:
    """What `passes.training.outer.eager` says of it."""
    assert growth(0.7, 0.9, members) == pytest.approx(found, abs=0.005)


@pytest.mark.slow  # one is DiLoCo, above
def test_eager_replicas_differ_by_what_is_in_flight() -> None:
    """β = 0, linear loss: θ_m - θ_n = -(γ / M) (Δ_m - Δ_n) of the last round alone.

    And θ_m is all deltas of all rounds but the last, with 1 / M of its own of that.
    """
    found = eager("lr=0.7,momentum=0.0", 3)
    deltas = -progress(3)
    for number in range(ROUNDS):
        ended = deltas[:number].sum(0).mean(0) if number else 0.0
        for member in range(3):
            wanted = -0.7 * (ended + deltas[number, member] / 3)
            np.testing.assert_allclose(found[member, number], wanted, rtol=0, atol=1e-5)
        for m, n in pairwise(range(3)):
            apart = -(0.7 / 3) * (deltas[number, m] - deltas[number, n])
            gap = found[m, number] - found[n, number]
            np.testing.assert_allclose(gap, apart, rtol=0, atol=1e-5)


def test_one_eager_worker_is_diloco() -> None:
    found = eager("lr=0.7,momentum=0.9", 1)[0]
    diloco = bundle("linear", "diloco{lr=0.7,momentum=0.9}")
    states = play(diloco, data(1), ROUNDS)[0]
    for own, state in zip(found, states, strict=True):
        wanted = np.concatenate([state[f"parameter/{n}"] for n in NAMES])
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-5)


@pytest.mark.slow  # one eager worker is above
def test_a_run_keeps_every_replica_and_shows_their_mean(tmp_path) -> None:
    """Through the shepherd: commits, a checkpoint, and everybody back from it."""
    (tmp_path / "text").write_bytes(b"the quick brown fox jumps over the dog. " * 4000)
    keys = {"tau": H, "vocabulary_size": 128, "checkpoint_every": 2}
    exp = experiment(tmp_path, outer_loop_steps=2, **keys)
    code = bundle("quadratic", "noloco").to_bytes()
    saved = Crew(exp, tmp_path / "run", code, 3).finish()
    assert len(saved.private) == 3
    for name in NAMES:
        mine = [own[f"replica.{name}"] for own in saved.private]
        assert np.abs(mine[0] - mine[1]).max() > 0
        mean = np.mean(np.array(mine, np.float64), axis=0).astype(np.float32)
        np.testing.assert_array_equal(saved.parameters[name], mean)
    trainer = load_bundle(code)
    for index, wanted in ((1, saved.private[1]["replica.h.0.w"]), (7, None)):
        trainer.restore(snapshot_of(saved), index)
        mean = saved.parameters["h.0.w"]
        found = trainer.private["replica.h.0.w"]
        np.testing.assert_array_equal(found, mean if wanted is None else wanted)
    trainer.close()
    longer = exp.model_copy(update={"outer_loop_steps": 4})
    again = Crew(longer, tmp_path / "run", code, 3, shepherd=Hasty).finish()
    assert again.round == 4
    assert again.outer["rounds"] == 4
