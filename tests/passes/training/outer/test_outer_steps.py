"""Outer algorithms on groups of workers, against torch and closed forms."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import (
    CLEAN,
    bundle,
    expanded,
    in_parallel,
    model,
    program,
    run_passes,
    tensors,
    worst,
)
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter

from pcp.passes.core import functions
from pcp.runtime.communicator.communicator import Communicator

torch = pytest.importorskip("torch")

LOWER = f"{CLEAN},pcp-lower-to-runtime"
OUTER_FUNCTIONS = ("outer_init", "outer_step", "grad_sync")
ROUNDS = 5


@cache
def compiled(algorithm: str) -> Any:
    return bundle(expanded(model(), "sgd", algorithm, LOWER, OUTER_FUNCTIONS))


def run(algorithm: str, start: list, moves: list, tokens: list) -> list[list]:
    """Each worker's parameters after each round.

    `moves[round][worker]` is what a worker subtracts from the anchor by itself.
    """

    def work(loaded: Any, rank: int) -> list:
        anchor, trajectory = start, []
        momenta = loaded["outer_init"](*start) or ()
        for step, counts in zip(moves, tokens, strict=True):
            own = [a - d for a, d in zip(anchor, step[rank], strict=True)]
            results = loaded["outer_step"](
                *anchor, *own, *momenta, np.float32(counts[rank])
            )
            anchor, momenta = results[: len(start)], results[len(start) :]
            trajectory.append(anchor)
        return trajectory

    return in_parallel(compiled(algorithm), len(tokens[0]), work)


def data(workers: int, seed: int = 0) -> tuple[list, list, list]:
    generator = np.random.default_rng(seed)
    start = tensors(generator)
    moves = [
        [tensors(generator, scale=0.1) for _ in range(workers)] for _ in range(ROUNDS)
    ]
    tokens = [generator.integers(1, 5000, workers).tolist() for _ in range(ROUNDS)]
    return start, moves, tokens


@pytest.mark.slow  # a program more
def test_a_trimmed_mean_leaves_liars_out() -> None:
    """Of each number the middle ones count; whoever lies moves none beyond them."""
    lies = [0.0, 1e30, -np.inf, np.nan, -1e-3]
    for workers in (1, 2, 3, 5, 8):
        start, moves, tokens = data(workers, seed=workers)
        away = max(1, workers // 4) if workers > 2 else 0
        for lie, step in zip(lies, moves, strict=True):
            for liar in range(away):
                step[liar] = [np.full_like(x, lie) for x in start]
        got = run("diloco{lr=0.7,momentum=0,mean=trimmed}", start, moves, tokens)
        for number, step in enumerate(moves):
            anchor = start if number == 0 else got[0][number - 1]
            for i, begin in enumerate(anchor):
                with np.errstate(all="ignore"):  # a delta is what a worker subtracted
                    deltas = np.stack([begin - (begin - move[i]) for move in step])
                middle = np.sort(deltas, 0)[away : workers - away]
                mean = sum(middle) / np.float32(len(middle))
                for held in got:
                    np.testing.assert_allclose(
                        held[number][i], begin - np.float32(0.7) * mean, 2e-6, 1e-7
                    )
                honest = deltas[away:]
                assert np.all(mean <= honest.max(0) + 1e-6)
                assert np.all(mean >= honest.min(0) - 1e-6)
    start, moves, tokens = data(3)
    moves[0][1] = [np.full_like(x, 1e30) for x in start]
    carried = run("diloco{lr=0.7,momentum=0}", start, moves[:1], tokens[:1])
    assert abs(carried[0][0][0]).max() > 1e28, "the weighted mean follows the liar"


def by_torch(start: list, moves: list, tokens: list, **options: Any) -> list:
    """SGD on the weighted mean of the moves."""
    params = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    optimizer = torch.optim.SGD(params, **options)
    trajectory = []
    for step, counts in zip(moves, tokens, strict=True):
        for i, p in enumerate(params):
            stacked = np.stack([np.asarray(m[i], np.float64) for m in step])
            mean = np.average(stacked, axis=0, weights=counts)
            p.grad = torch.tensor(mean.astype(np.float32))
        optimizer.step()
        trajectory.append([p.detach().numpy().copy() for p in params])
    return trajectory


OUTER = {
    "diloco": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
    "diloco{lr=0.5,momentum=0.8,nesterov=false}": {"lr": 0.5, "momentum": 0.8},
    "diloco{lr=1.0,momentum=0}": {"lr": 1.0},
}


@sampled("algorithm", OUTER, 1)
def test_diloco_equals_torch_on_the_weighted_mean(algorithm: str) -> None:
    start, moves, tokens = data(3)
    found = run(algorithm, start, moves, tokens)
    wanted = by_torch(start, moves, tokens, **OUTER[algorithm])
    for trajectory in found:
        errors = [worst(f, w) for f, w in zip(trajectory, wanted, strict=True)]
        assert max(errors) < 2e-6
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert all(
                a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True)
            )


def test_averaging_takes_the_weighted_mean() -> None:
    start, moves, tokens = data(2)
    found = run("average", start, moves[:1], tokens[:1])
    weights = tokens[0]
    for i, p in enumerate(start):
        own = np.stack([p - moves[0][rank][i] for rank in range(2)])
        mean = np.average(own.astype(np.float64), axis=0, weights=weights)
        np.testing.assert_allclose(found[0][0][i], mean, atol=5e-7)


def test_one_worker_averaging_is_left_alone() -> None:
    """M = 1: the inner optimizer and nothing else, to the last bit."""
    start, moves, tokens = data(1)
    found = run("average", start, moves[:1], tokens[:1])
    own = [p - d for p, d in zip(start, moves[0][0], strict=True)]
    assert all(
        a.tobytes() == b.tobytes() for a, b in zip(found[0][0], own, strict=True)
    )


def test_one_worker_diloco_is_lookahead() -> None:
    """M = 1, no momentum: θ <- θ + γ (θ_1 - θ), Lookahead with α = γ."""
    start, moves, tokens = data(1)
    found = run("diloco{lr=0.5,momentum=0}", start, moves, tokens)
    theta = start
    for i, step in enumerate(moves):
        theta = [t - np.float32(0.5) * d for t, d in zip(theta, step[0], strict=True)]
        assert worst(found[0][i], theta) < 1e-6


def test_equal_workers_are_as_one() -> None:
    start, moves, _ = data(1)
    twice = [[step[0], step[0]] for step in moves]
    alone = run("diloco", start, moves, [[100]] * ROUNDS)
    both = run("diloco", start, twice, [[100, 100]] * ROUNDS)
    for rank in (0, 1):
        assert (
            max(worst(a, b) for a, b in zip(alone[0], both[rank], strict=True)) < 1e-6
        )


def test_one_step_rounds_are_synchronous_sgd() -> None:
    """H = 1, inner SGD(η), averaging: θ - η mean(g), on every worker."""
    generator = np.random.default_rng(4)
    start = tensors(generator)
    gradients = [[tensors(generator) for _ in range(2)] for _ in range(ROUNDS)]
    moves = [[[0.1 * g for g in own] for own in step] for step in gradients]
    moves = [[[m.astype(np.float32) for m in own] for own in step] for step in moves]
    found = run("average", start, moves, [[64, 64]] * ROUNDS)
    wanted = by_torch(start, gradients, [[1, 1]] * ROUNDS, lr=0.1)
    assert max(worst(f, w) for f, w in zip(found[0], wanted, strict=True)) < 1e-6


def test_data_parallel_gradients_are_the_weighted_mean() -> None:
    generator = np.random.default_rng(6)
    gradients = [tensors(generator) for _ in range(2)]
    tokens = [100, 300]

    def work(loaded: Any, rank: int) -> list:
        return loaded["grad_sync"](*gradients[rank], np.float32(tokens[rank]))

    found = in_parallel(compiled("ddp"), 2, work)
    for i in range(3):
        wanted = 0.25 * gradients[0][i] + 0.75 * gradients[1][i]
        np.testing.assert_allclose(found[0][i], wanted, atol=5e-7)
        assert found[0][i].tobytes() == found[1][i].tobytes()


def test_nothing_is_changed_by_a_step_that_failed() -> None:
    """The outer step donates nothing: after a lost peer it runs again as it was."""
    start, moves, _ = data(1)
    own = [p - d for p, d in zip(start, moves[0][0], strict=True)]
    module = expanded(model(), "sgd", "diloco", LOWER, OUTER_FUNCTIONS)
    with program(module) as loaded:
        assert loaded["outer_step"].signature.donates == ()
        given = [loaded.to_device(x) for x in [*start, *own]]
        given += loaded["outer_init"](*given[:3], device_arrays=True)
        alone, lost = Communicator.in_process(1)[0], Communicator.in_process(2)
        before = [g.numpy().tobytes() for g in given]
        loaded.communicator = lost[0]
        lost[1].abort("gone")
        with pytest.raises(Exception, match="gone"):
            loaded["outer_step"](*given, np.float32(5))
        assert [g.numpy().tobytes() for g in given] == before
        loaded.communicator = alone
        again = loaded["outer_step"](*given, np.float32(5))
        wanted = run("diloco", start, moves[:1], [[5]])[0][0]
        assert worst(again[:3], wanted) == 0
        for communicator in (alone, *lost):
            communicator.close()


PARALLEL = """
func.func @main({arguments}) -> ({results}) {{
  %0:{count} = "interpreter.run_parallel"({values})
      {{programs = [[@outer_step, @outer_step]]}} : ({types}) -> ({results})
  return {outputs} : {results}
}}"""


def test_two_members_in_the_reference_interpreter(interpreter: Interpreter) -> None:
    """The same program through StableHLO's collectives."""
    start, moves, tokens = data(2)
    module = expanded(
        model(),
        "sgd",
        "diloco",
        f"{CLEAN},pcp-lower-to-stablehlo-collectives{{elastic=2}}",
        ["outer_step"],
    )
    with module.context:
        step = functions.find(module, "outer_step")
        assert step is not None
        type_ = functions.function_type(step)
        inputs, results = ([*map(str, t)] * 2 for t in (type_.inputs, type_.results))
    main = PARALLEL.format(
        arguments=", ".join(f"%a{i}: {t}" for i, t in enumerate(inputs)),
        values=", ".join(f"%a{i}" for i in range(len(inputs))),
        outputs=", ".join(f"%0#{i}" for i in range(len(results))),
        types=", ".join(inputs),
        results=", ".join(results),
        count=len(results),
    )
    zeros = [np.zeros_like(p) for p in start]
    given: list = []
    for rank in range(2):
        own = [p - d for p, d in zip(start, moves[0][rank], strict=True)]
        given += [*start, *own, *zeros, np.float32(tokens[0][rank])]
    found = interpreter.run(f"{main}\n{step}", given)
    wanted = run("diloco", start, moves[:1], tokens[:1])[0][0]
    for members in (found[:3], found[6:9]):
        assert worst(members, wanted) < 1e-6


def test_collectives_are_bucketed() -> None:
    """One for an element type, whatever the number of tensors, and for the tokens."""
    module = expanded(model(), "sgd", "diloco")
    assert str(module).count('"pcp.all_reduce"') == 1
    assert run_passes(str(module), "pcp-verify-plan") is not None
