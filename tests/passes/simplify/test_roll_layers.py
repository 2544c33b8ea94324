"""pcp-roll-layers: equal layers as a loop, and what comes of it: the same numbers."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.deep import decoder, vit

import pcp
from pcp.dialect.bindings import ir
from pcp.frontends.jax import from_jax
from pcp.passes.core.rewriting import operations
from pcp.runtime.program.executor import Program

WIDTH, ROWS = 16, 8


def residual(layers: int) -> tuple[Callable[..., Any], dict[str, Any], np.ndarray]:
    """Layers of a norm, two products and a residual sum; what they share is a mask."""
    random = np.random.default_rng(0)
    shapes = {"up": (WIDTH, 32), "down": (32, WIDTH), "gain": (WIDTH,)}
    weights = {
        f"{name}.{i}": (random.normal(size=shape) / 4).astype(np.float32)
        for i in range(layers)
        for name, shape in shapes.items()
    }
    weights |= {"first": random.normal(size=(WIDTH, WIDTH)).astype(np.float32)}

    def loss(w: dict[str, Any], x: Any) -> Any:
        mask = jnp.where(jnp.arange(WIDTH) % 3 == 0, 0.0, 1.0)
        x = x @ w["first"]
        for i in range(layers):
            y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
            y = jnp.tanh((y * w[f"gain.{i}"]) @ w[f"up.{i}"])
            x = x + (y @ w[f"down.{i}"]) * mask
        return jnp.square(x).mean()

    return loss, weights, random.normal(size=(ROWS, WIDTH)).astype(np.float32)


def rolled(module: ir.Module, options: str = "") -> ir.Module:
    return pcp.run_passes(
        module, f"builtin.module(pcp-infer-roles,pcp-roll-layers{{{options}}},cse)"
    )


def loops(module: ir.Module) -> int:
    return sum(op.name == "stablehlo.while" for op in operations(module))


def gradients(module: ir.Module, *given: np.ndarray) -> list[np.ndarray]:
    """The loss and its gradients through IREE."""
    bundle = pcp.compile(module, mode="grad")
    with Program.load(bundle, device="local-sync") as program:
        return [*map(np.array, program["main_grad"](*given))]


def test_gradients_are_those_of_the_layers_apart() -> None:
    loss, weights, x = residual(4)
    module = from_jax(loss, weights, x)
    looped = rolled(module)
    assert loops(looped) == 1
    given = [weights[name] for name in sorted(weights)]
    value, *found = gradients(looped, *given, x)
    wanted = jax.jit(jax.value_and_grad(loss))(weights, x)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-6)
    for name, f in zip(sorted(weights), found, strict=True):
        w = np.asarray(wanted[1][name])
        np.testing.assert_allclose(f, w, atol=1e-6 * np.abs(w).max(), err_msg=name)


@pytest.mark.parametrize("make", ["decoder", "vit", "residual"])
def test_a_model_does_not_grow_with_depth(make: str) -> None:
    """Beside its parameters' rows in the stacks."""
    sizes = {}
    for layers in (5, 10):
        if make == "residual":
            loss, weights, *rest = residual(layers)
        elif make == "vit":
            loss, weights, rest = vit(layers, 16)
        else:
            loss, weights, rest = decoder(layers, "unrolled", 16, 8)
        module = from_jax(loss, weights, *rest)
        looped = rolled(module)
        assert loops(looped) == 1
        ops = len(operations(looped))
        sizes[layers] = ops - len(weights)
        assert ops < len(operations(module))
    assert abs(sizes[10] - sizes[5]) <= 2


def test_the_derivative_of_a_stack_is_written_row_by_row() -> None:
    """No turn of the reverse loop adds up whole stacks."""
    loss, weights, x = residual(4)
    module = rolled(from_jax(loss, weights, x))
    text = str(pcp.run_passes(module, "builtin.module(pcp-grad,pcp-simplify)"))
    assert re.search(r"dynamic_update_slice .* tensor<4x16x32xf32>", text)
    assert not re.search(r"stablehlo\.add .* tensor<4x16x32xf32>", text)


@pytest.mark.parametrize(("rows", "wanted"), [(4, 0), (4096, 1)])
def test_the_cost_of_copies_decides(rows: int, wanted: int) -> None:
    """Few rows through a layer are little work beside the copy of its parameters."""
    loss, weights, _ = residual(8)
    x = jax.ShapeDtypeStruct((rows, WIDTH), np.float32)
    assert loops(rolled(from_jax(loss, weights, x), "layers=8 overhead=0.05")) == wanted


@pytest.mark.slow  # the pass itself is tested above
def test_it_is_an_option_of_the_compiler() -> None:
    loss, weights, x = residual(4)
    module, seen = from_jax(loss, weights, x), {}
    for layers in ("unrolled", "rolled"):
        options = {"optimizer": "sgd", "algorithm": "none", "layers": layers}
        bundle = pcp.compile(module, **options)
        seen[layers] = bundle.ir("program").count("stablehlo.while")
    assert seen["unrolled"] == 0
    assert seen["rolled"] >= 2, "forward and reverse"
