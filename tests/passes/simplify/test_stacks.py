"""Stacks at the border of functions: the same bits, and no growth with depth."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.expanded_training import address

import pcp
from pcp.bundle import Bundle
from pcp.compiler import emission
from pcp.frontends.jax import from_jax
from pcp.runtime.program.executor import Program
from pcp.runtime.program.stacks import Row

WIDTH, ROWS = 8, 4
#: Layers that make more results of @apply than one function has.
DEEP = 100


def model(layers: int) -> Any:
    """A residual layer, so many times, with a matrix and a vector each."""
    random = np.random.default_rng(0)
    weights = {
        f"{name}.{i:03}": (random.normal(size=shape) / 4).astype(np.float32)
        for i in range(layers)
        for name, shape in (("w", (WIDTH, WIDTH)), ("b", (WIDTH,)))
    }

    def loss(w: dict[str, Any], x: Any) -> Any:
        for i in range(layers):
            x = x + jnp.tanh(x @ w[f"w.{i:03}"] + w[f"b.{i:03}"])
        return jnp.square(x).mean()

    return from_jax(loss, weights, random.normal(size=(ROWS, WIDTH)).astype("f"))


def trained(layers: int, optimizer: str, how: str, **more: Any) -> Bundle:
    return pcp.compile(
        model(layers), mode="train", optimizer=optimizer, layers=how, **more
    )


def steps(bundle: Bundle, count: int = 3) -> tuple[list[np.ndarray], bool]:
    """Losses and all that is kept after some steps; whether all stayed in place."""
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    with Program.load(bundle, device="local-sync") as program:
        grad, apply = program["grad"], program["apply"]
        kept = list(program["init"](np.int64(3), device_arrays=True))
        params = len(apply.signature.inputs_of("param"))
        losses, places = [], []
        for _ in range(count):
            loss, *slopes = grad(*kept[:params], x, device_arrays=True)
            losses.append(loss.numpy())
            kept = list(
                apply(*kept[:params], *slopes, *kept[params:], device_arrays=True)
            )
            places.append([_address(value) for value in kept if value.shape])
        return [*losses, *(v.numpy() for v in kept)], places[-1] == places[-2]


def _address(array: Any) -> int:
    if isinstance(array.view, Row):
        return array.view.stack.memory()[array.view.number].ctypes.data
    return address(array)


@pytest.mark.slow  # test_rows_are_tensors_of_their_own
@pytest.mark.parametrize(
    "optimizer",
    [
        "adamw{lr=0.1,weight_decay=0.1,clip_norm=1.0}",
        pytest.param("muon{lr=0.1}", marks=pytest.mark.slow),  # it is not stacked
    ],
)
def test_stacked_updates_are_those_apart(optimizer: str) -> None:
    found, in_place = steps(trained(4, optimizer, "rolled"))
    wanted, _ = steps(trained(4, optimizer, "unrolled"))
    if "muon" not in optimizer:
        assert in_place
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, atol=1e-6 * max(1, np.abs(w).max()))


def test_functions_do_not_grow_with_depth(monkeypatch: Any) -> None:
    """What IREE compiles has as many arguments and results for twice the layers."""
    monkeypatch.setattr(emission, "compile_target", lambda *_: b"")
    sizes = set()
    for layers in (4, 8):
        found = trained(layers, "adamw{lr=0.1}", "rolled").manifest.functions
        parts = [found[name].parts for name in ("grad", "apply", "main")]
        sizes.add(tuple((len(p.inputs), p.results) for part in parts for p in part))
    assert len(sizes) == 1


@pytest.mark.slow  # 600 results: a minute of compiling
def test_many_results_are_split_and_stacked() -> None:
    found, in_place = steps(trained(DEEP, "adamw{lr=0.1,clip_norm=1.0}", "rolled"))
    wanted, _ = steps(trained(DEEP, "adamw{lr=0.1,clip_norm=1.0}", "unrolled"))
    assert in_place
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, atol=1e-5 * max(1, np.abs(w).max()))


def test_rows_are_tensors_of_their_own() -> None:
    """A row goes to a function by itself, and what was copied out stays as it was."""
    bundle = trained(4, "sgd{lr=0.1}", "rolled")
    x = np.ones((ROWS, WIDTH), np.float32)
    with Program.load(bundle, device="local-sync") as program:
        grad, apply = program["grad"], program["apply"]
        values = [v.numpy() for v in program["init"](np.int64(3), device_arrays=True)]
        params = len(apply.signature.inputs_of("param"))
        _, *slopes = grad(*values[:params], x, device_arrays=True)
        held = [v for v in slopes if isinstance(v.view, Row)]
        assert len(held) == params
        wanted = [v.numpy() for v in slopes]
        # In another order the rows are no stack any more, and are copied into one.
        specs = apply.signature.inputs
        by_shape = [i for i in range(params) if specs[i].shape == (WIDTH,)]
        mixed = list(slopes)
        for i, j in zip(by_shape, reversed(by_shape), strict=True):
            mixed[i] = slopes[j]
        made = apply(*values[:params], *mixed, *values[params:], device_arrays=True)
        for i in range(params):
            slope = mixed[i].numpy()
            np.testing.assert_allclose(
                made[i].numpy(), values[i] - np.float32(0.1) * slope, atol=1e-6
            )
        assert all(
            a.numpy().tobytes() == b.tobytes()
            for a, b in zip(slopes, wanted, strict=True)
        )
