"""Directions and lengths averaged apart, on groups of workers, against numpy."""

from contextlib import closing
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.expanded_training import (
    CLEAN,
    SHAPES,
    bundle,
    expanded,
    in_parallel,
    model,
    tensors,
    worst,
)
from helpers.models.token_batches import token_batch

import pcp
from pcp.runtime import Communicator
from pcp.training.storage.state_names import PARAMETER
from pcp.training.trainer.load import load

LOWER = f"{CLEAN},pcp-lower-to-runtime"
PLAIN = "lr=1.0,momentum=0"


@pytest.fixture(scope="module")
def code() -> Any:
    return compiled(f"decoupled{{{PLAIN}}}")


def compiled(algorithm: str) -> Any:
    return bundle(expanded(model(), "sgd", algorithm, LOWER, ["outer_step"]))


def merged(code: Any, deltas: list, tokens: list[int]) -> list[list]:
    """What each member takes from parameters at 0: the merged deltas."""
    zeros = [np.zeros(shape, np.float32) for shape in SHAPES.values()]

    def work(loaded: Any, rank: int) -> list:
        own = [np.asarray(-d, np.float32) for d in deltas[rank]]
        new = loaded["outer_step"](*zeros, *own, np.float32(tokens[rank]))
        return [-x for x in new]

    return in_parallel(code, len(deltas), work)


def by_hand(deltas: list, tokens: list[int]) -> list:
    shares, result = np.array(tokens) / np.sum(tokens), []
    for column in zip(*deltas, strict=True):
        wide = [np.asarray(x, np.float64) for x in column]
        lengths = [np.linalg.norm(x) for x in wide]
        units = [x / n if n else x for x, n in zip(wide, lengths, strict=True)]
        middle = sum(s * u for s, u in zip(shares, units, strict=True))
        size = np.linalg.norm(middle)
        length = np.dot(shares, lengths)
        result.append(middle / size * length if size else middle)
    return result


@pytest.mark.slow  # a program more
def test_the_merge_is_the_mean_length_along_the_mean_direction(code: Any) -> None:
    generator = np.random.default_rng(2)
    deltas = [tensors(generator, scale=s) for s in (0.1, 3.0, 1e-3)]
    tokens = [1, 5, 2]
    found = merged(code, deltas, tokens)
    for member in found:
        assert worst(member, by_hand(deltas, tokens)) < 2e-6
        for a, b in zip(member, found[0], strict=True):
            assert a.tobytes() == b.tobytes()


def test_equal_deltas_are_that_delta_whatever_the_weights(code: Any) -> None:
    own = tensors(np.random.default_rng(3))
    for found in merged(code, [own, own], [7, 100]):
        assert worst(found, own) < 1e-6


def test_deltas_at_right_angles_keep_their_length(code: Any) -> None:
    """A plain mean of M of them would be shorter by 1 / √M."""
    rows = np.eye(4, 15, dtype=np.float32).reshape(4, 3, 5)
    deltas = [[row, np.zeros(5, np.float32), np.zeros((), np.float32)] for row in rows]
    for found in merged(code, deltas, [1] * 4):
        assert np.linalg.norm(found[0]) == pytest.approx(1, rel=1e-6)


def test_what_cancels_and_what_is_nothing_give_zero(code: Any) -> None:
    own = tensors(np.random.default_rng(4))
    nothing = [np.zeros_like(x) for x in own]
    for others in ([-x for x in own], nothing):
        first = nothing if others is nothing else own
        for found in merged(code, [first, others], [3, 3]):
            assert worst(found, nothing) == 0


def test_huge_and_tiny_deltas_have_a_length(code: Any) -> None:
    """Squares of 1e30 overflow and squares of 1e-30 vanish in f32."""
    for size in (1e30, 1e-30):
        own = [
            np.asarray(size * x, np.float32) for x in tensors(np.random.default_rng(5))
        ]
        for found in merged(code, [own, own], [1, 1]):
            for a, b in zip(found, own, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-6)


def test_without_it_the_merge_is_that_of_diloco() -> None:
    generator = np.random.default_rng(6)
    deltas, tokens = [tensors(generator) for _ in range(3)], [1, 5, 2]
    plain = merged(compiled(f"decoupled{{{PLAIN},radial=false}}"), deltas, tokens)
    diloco = merged(compiled(f"diloco{{{PLAIN}}}"), deltas, tokens)
    for a, b in zip(plain, diloco, strict=True):
        assert [x.tobytes() for x in a] == [x.tobytes() for x in b]


@pytest.mark.slow
def test_a_model_of_many_tensors_loads_and_merges() -> None:
    """The numbers of all tensors in one row were too many operands of a dispatch."""
    count, draw = 40, np.random.default_rng(3)

    def loss(weights: list, ids: Any, targets: Any) -> Any:
        hidden = jnp.take(weights[0], ids, axis=0)
        for weight in weights[1:]:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean((hidden - targets[..., None].astype(jnp.float32)) ** 2)

    weights = [draw.normal(size=(4, 4)).astype(np.float32) for _ in range(count)]
    ids = np.zeros((2, 4), np.int32)
    code = pcp.compile(
        pcp.from_jax(loss, weights, ids, ids),
        ["cpu"],
        mode="train",
        optimizer="sgd{lr=0.5}",
        algorithm=f"decoupled{{{PLAIN}}}",
        cache=None,
    )
    (alone,) = Communicator.in_process(1)
    with closing(alone), closing(load(code, "local-sync", None)) as trainer:
        trainer.fresh(0)
        trainer.join(alone)
        trainer.begin(1, 1)
        trainer.step([token_batch(ids, ids, trainer.inputs)])
        made = [np.asarray(x) for x in trainer.steps.held("param").values()]
        new = [v for k, v in trainer.outer(1, alone).items() if k.startswith(PARAMETER)]
    assert len(new) == count
    for own, merged_ in zip(made, new, strict=True):
        np.testing.assert_allclose(merged_, own, rtol=0, atol=1e-5)
