"""Algorithms of one exchange a round or a step: bundles, trainers, links in memory."""

import threading
from typing import Any

import numpy as np
import pytest
from helpers.models.closed_form import (
    RATE,
    batches,
    bundle,
    gradients,
    parameters,
    play,
    same_bits,
)
from helpers.models.token_batches import pair

from pcp.errors import RuntimeFault
from pcp.runtime.communicator.communicator import Communicator
from pcp.training.storage.state_names import PARAMETER, shared_part
from pcp.training.trainer.load import load

MEMBERS, ROUNDS, STEPS = 3, 4, 3


def data(members: int = MEMBERS, steps: int = ROUNDS * STEPS) -> list:
    return [batches(steps, m) for m in range(members)]


def by_name(state: dict) -> dict:
    return {
        name.removeprefix(PARAMETER): value
        for name, value in state.items()
        if name.startswith(PARAMETER)
    }


def alike(seen: list[list]) -> bool:
    """All members had the same bits after each round."""
    return all(
        same_bits(mine, theirs)
        for other in seen[1:]
        for mine, theirs in zip(seen[0], other, strict=True)
    )


# Exchanges in every step -------------------------------------------------------------


@pytest.mark.slow  # two programs
def test_data_parallel_steps_are_rounds_of_one_step() -> None:
    together = play(bundle("quadratic", "ddp"), data(), ROUNDS)
    averaged = play(bundle("quadratic", "average"), data(), ROUNDS * STEPS)
    assert alike(together)
    for number in range(ROUNDS):
        wanted = parameters(averaged[0][(number + 1) * STEPS - 1])
        found = parameters(together[0][number])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def test_who_has_fewer_batches_takes_the_others_steps() -> None:
    """One member of two makes its last step without a batch, of weight 0."""
    code, group = bundle("quadratic", "ddp"), Communicator.in_process(2)
    first, second = batches(2, 0), batches(1, 1)
    trainers = [load(code, "local-sync", None) for _ in range(2)]
    found: list = [None, None]

    def work(rank: int, plan: list) -> None:
        trainer = trainers[rank]
        trainer.fresh(3)
        trainer.join(group[rank])
        trainer.begin(2, 1)
        for step in plan:
            trainer.step(step)
        found[rank] = shared_part(trainer.outer(1, group[rank]))

    plans = ([[first[0]], [first[1]]], [[second[0]], []])
    threads = [
        threading.Thread(target=work, args=(rank, plan))
        for rank, plan in enumerate(plans)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert same_bits(found[0], found[1])
    start = by_name(trainers[0].shared)
    for name, value in start.items():
        for step in ([first[0], second[0]], [first[1]]):
            means = [value - pair(b)["v" in name].mean(0) / 128 for b in step]
            value = value - RATE * np.mean(means, axis=0)
        np.testing.assert_allclose(by_name(found[0])[name], value, atol=1e-6)
    for one in (*trainers, *group):
        one.close()


@pytest.mark.slow  # test_codes.py tests the code
def test_all_frequencies_of_one_worker_are_sign_descent() -> None:
    """k = all, M = 1, β = 0: θ <- θ - η sign(g)."""
    seen = play(bundle("linear", "demo{k=4096,beta=0}"), data(1), ROUNDS)
    wanted = None
    for number, state in enumerate(seen[0]):
        now = by_name(state)
        if wanted is not None:
            for batch in data(1)[0][number * STEPS : (number + 1) * STEPS]:
                for name, g in gradients(batch).items():
                    wanted[name] = wanted[name] - RATE * np.sign(g)
            for name, value in now.items():
                np.testing.assert_allclose(value, wanted[name], atol=1e-6)
        wanted = now


# One exchange a round ----------------------------------------------------------------


def test_delayed_deltas_are_seen_one_round_later() -> None:
    """A linear loss: deltas do not depend on the parameters, the delay is all."""
    late = play(bundle("linear", "async_diloco{lr=0.5}"), data(), ROUNDS)
    prompt = play(bundle("linear", "diloco{lr=0.5,momentum=0}"), data(), ROUNDS)
    assert alike(late)
    for number in range(1, ROUNDS):
        np.testing.assert_allclose(
            parameters(late[0][number]), parameters(prompt[0][number - 1]), atol=1e-6
        )


@pytest.mark.slow  # two programs
def test_one_worker_alone_with_momentum_is_diloco_of_one() -> None:
    alone = play(bundle("linear", "snoo{lr=0.5}"), data(1), ROUNDS)
    of_one = play(bundle("linear", "diloco{lr=0.5,momentum=0.9}"), data(1), ROUNDS)
    for mine, theirs in zip(alone[0], of_one[0], strict=True):
        np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-6)
    assert not bundle("linear", "snoo{lr=0.5}").manifest.collectives


@pytest.mark.slow  # test_codes.py tests the code
@pytest.mark.parametrize(
    "algorithm",
    [
        "sparseloco{beta=1,k=64}",
        pytest.param("muloco{wire=2bit,rho=1,momentum=0,lr=1}", marks=pytest.mark.slow),
    ],
)
def test_what_was_sent_and_what_is_left_is_all_there_was(algorithm: str) -> None:
    """ρ = 1: Σ_t C(E) + E = Σ_t Δ, for the mean over the workers."""
    left: dict[int, dict] = {}

    def watch(trainer, number):
        left[id(trainer)] = {k: np.array(v) for k, v in trainer.private.items()}

    seen = play(bundle("linear", algorithm), data(), ROUNDS, watch=watch)
    assert alike(seen)
    moves: dict[str, Any] = dict.fromkeys(("h.0.w", "h.1.v"), 0.0)
    for member in data():
        for batch in member:
            for name, g in gradients(batch).items():
                moves[name] = moves[name] + RATE * g.astype(np.float64) / MEMBERS
    begun = _start("linear", algorithm)
    for name, move in moves.items():
        kept = np.mean([state[f"error.{name}"] for state in left.values()], axis=0)
        sent = begun[name] - by_name(seen[0][-1])[name]
        np.testing.assert_allclose(sent + kept, move, atol=2e-5)
        assert np.abs(kept).max() > 1e-3, "nothing was lost: the test says nothing"


def _start(kind: str, algorithm: str) -> dict:
    trainer = load(bundle(kind, algorithm), "local-sync", None)
    trainer.fresh(3)
    found = {k: np.array(v) for k, v in by_name(trainer.shared).items()}
    trainer.close()
    return found


@pytest.mark.slow
def test_everything_sent_as_it_is_is_outer_sgd() -> None:
    """k = all, β = 0, no quantiser."""
    full = "sparseloco{k=4096,bits=32,beta=0,lr=0.5}"
    found = play(bundle("linear", full), data(), ROUNDS)
    plain = play(bundle("linear", "diloco{lr=0.5,momentum=0}"), data(), ROUNDS)
    for mine, theirs in zip(found[0], plain[0], strict=True):
        np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["sparseloco{beta=1,k=64}"])
def test_a_round_that_lost_a_member_is_that_of_the_others(algorithm: str) -> None:
    """Nothing private changes in an exchange that failed: it is made again, alone."""
    code, mine = bundle("linear", algorithm), data(1)[0]
    once, again = (load(code, "local-sync", None) for _ in range(2))
    alone = Communicator.in_process(1)[0]
    lost = Communicator.in_process(2)
    for trainer in (once, again):
        trainer.fresh(3)
        trainer.join(alone)
        trainer.begin(STEPS, 1)
        for batch in mine[:STEPS]:
            trainer.step([batch])
        trainer.adopt(trainer.outer(1, alone))
    for trainer in (once, again):
        trainer.begin(STEPS, 1)
        for batch in mine[STEPS : 2 * STEPS]:
            trainer.step([batch])
    before = {k: v.tobytes() for k, v in again.private.items()}
    lost[1].abort("gone")
    again.join(lost[0])
    with pytest.raises(RuntimeFault, match="gone"):
        again.outer(1, lost[0])
    assert {k: v.tobytes() for k, v in again.private.items()} == before
    again.join(alone)
    for trainer in (once, again):
        trainer.adopt(trainer.outer(1, alone))
    assert same_bits(once.shared, again.shared)
    assert same_bits(once.private, again.private)
    for one in (once, again, alone, *lost):
        one.close()
