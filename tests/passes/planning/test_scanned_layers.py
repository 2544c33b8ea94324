"""Layers written out, as a scan and as a counted `while` are one model.

Their forward is judged alike in all spellings, and so is the time of their gradient:
stacks of residuals, and of gradients where weights are stacked, are written in place.
What a gradient holds is another matter: a loop keeps a stack of each residual, where
layers written out share what one gives and the next one takes. That this is judged
right is for `test_memory_on_iree.py` to say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.analysis.cluster import Device
from pcp.passes.analysis.memory import temporary_bytes
from pcp.passes.core.functions import find
from pcp.passes.core.walk import block_of
from pcp.passes.planning.cost import PlannedMember, block_cost
from pcp.passes.sharding.inline_calls import inline_calls

WIDTH, NEAR = 128, 0.15
DEVICE = Device("a", target="cpu", throughput={"f32": 5e10}, membw=1e10, overhead=2e-5)

Shape = tuple[int, ...]
Layer = Callable[[Any, dict[str, Any]], Any]


def dense(x: Any, w: dict[str, Any]) -> Any:
    return jnp.tanh(x @ w["w"])


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def block(x: Any, w: dict[str, Any]) -> Any:
    """Of a Transformer."""
    n, t, d = x.shape
    y = norm(x)
    q, k, v = ((y @ w[name]).reshape(n, t, 4, -1) for name in "qkv")
    scores = jnp.einsum("nthd,nshd->nhts", q, k) / np.sqrt(d // 4)
    mixed = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9))
    x = x + jnp.einsum("nhts,nshd->nthd", mixed, v).reshape(n, t, d) @ w["out"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


#: The layer, how often, its weights, whether all layers share them, its input.
MODELS: dict[str, tuple[Layer, int, dict[str, Shape], bool, Shape]] = {
    "dense": (dense, 60, {"w": (2 * WIDTH, 2 * WIDTH)}, True, (512, 2 * WIDTH)),
    "transformer": (
        block,
        12,
        {
            **{name: (WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
            "up": (WIDTH, 4 * WIDTH),
            "down": (4 * WIDTH, WIDTH),
        },
        False,
        (8, 64, WIDTH),
    ),
}


SPELLINGS = ("written out", "scan", "while")


@dataclass(frozen=True)
class Judged:
    """Seconds and bytes of a loss, seconds of its gradient."""

    seconds: float
    bytes: int
    gradient: float


@cache
def judged(name: str, spelling: str) -> Judged:
    """On one device."""
    text = jax.jit(loss_of(name, spelling)).lower(*arguments(name)).as_text()
    module = parse(text)
    pipeline("builtin.module(pcp-import)").run(module)
    inline_calls(module)
    wrt = ",".join(map(str, range(len(MODELS[name][2]))))
    passes = f"pcp-grad{{wrt={wrt}}},pcp-inline-composites,pcp-simplify"
    pipeline(f"builtin.module({passes})").run(module)
    with module.context:
        main, gradient = find(module, "main"), find(module, "main_grad")
        assert main is not None
        assert gradient is not None
        member = PlannedMember.alone(DEVICE)
        blocks = [block_of(function, 0) for function in (main, gradient)]
        first, second = (block_cost(block, member).compute for block in blocks)
        return Judged(first, temporary_bytes(blocks[0]), second)


def arguments(name: str) -> tuple[dict[str, Any], Any]:
    """The shapes of the weights, and of the input."""
    _, count, shapes, shared, given = MODELS[name]
    stack = () if shared else (count,)
    weights = {
        n: jax.ShapeDtypeStruct((*stack, *s), "float32") for n, s in shapes.items()
    }
    return weights, jax.ShapeDtypeStruct(given, "float32")


def loss_of(name: str, spelling: str) -> Callable[[dict[str, Any], Any], Any]:
    """The model, its layers spelt so."""
    layer, count, _, shared, _ = MODELS[name]

    def of(w: dict[str, Any], i: Any) -> dict[str, Any]:
        return w if shared else {n: v[i] for n, v in w.items()}

    def through(w: dict[str, Any], x: Any) -> Any:
        if spelling == "scan":
            own = None if shared else w
            step = lambda x, own: (layer(x, w if shared else own), None)  # noqa: E731
            return jax.lax.scan(step, x, own, count)[0]
        if spelling == "while":
            return jax.lax.while_loop(
                lambda state: state[0] < count,
                lambda state: (state[0] + 1, layer(state[1], of(w, state[0]))),
                (0, x),
            )[1]
        for i in range(count):
            x = layer(x, of(w, i))
        return x

    return lambda w, x: jnp.square(through(w, x)).mean()


@pytest.mark.parametrize("spelling", SPELLINGS[1:])
@pytest.mark.parametrize("name", MODELS)
def test_a_loop_is_judged_as_its_layers_written_out(name: str, spelling: str) -> None:
    loop, written_out = judged(name, spelling), judged(name, "written out")
    assert loop.seconds == pytest.approx(written_out.seconds, rel=NEAR)
    carry = 4 * prod(MODELS[name][-1])  # which a round reads, and makes anew
    assert loop.bytes - carry <= (1 + NEAR) * written_out.bytes
    assert loop.bytes >= (1 - NEAR) * written_out.bytes
    assert loop.bytes == pytest.approx(judged(name, "scan").bytes, rel=NEAR)


@pytest.mark.parametrize("spelling", SPELLINGS[1:])
@pytest.mark.parametrize("name", MODELS)
def test_a_loops_gradient_is_judged_as_that_of_its_layers(
    name: str, spelling: str
) -> None:
    loop, written_out = judged(name, spelling), judged(name, "written out")
    assert loop.gradient == pytest.approx(written_out.gradient, rel=NEAR)
