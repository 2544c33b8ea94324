"""Layers as a scan and written out are one model, and judged alike."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.analysis.cluster import Device
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


def judged(name: str, scanned: bool) -> tuple[float, float]:
    """Seconds of the loss and of its gradient on one device."""
    layer, count, shapes, shared, given = MODELS[name]
    stack = () if shared else (count,)
    weights = {
        n: jax.ShapeDtypeStruct((*stack, *s), "float32") for n, s in shapes.items()
    }

    def of(w: dict[str, Any], i: int) -> dict[str, Any]:
        return w if shared else {n: v[i] for n, v in w.items()}

    def loss(w: dict[str, Any], x: Any) -> Any:
        if scanned:
            x, _ = jax.lax.scan(
                lambda x, own: (layer(x, w if shared else own), None),
                x,
                None if shared else w,
                count,
            )
        else:
            for i in range(count):
                x = layer(x, of(w, i))
        return jnp.square(x).mean()

    text = (
        jax.jit(loss).lower(weights, jax.ShapeDtypeStruct(given, "float32")).as_text()
    )
    module = parse(text)
    pipeline("builtin.module(pcp-import)").run(module)
    inline_calls(module)
    wrt = ",".join(map(str, range(len(shapes))))
    passes = f"pcp-grad{{wrt={wrt}}},pcp-inline-composites,pcp-simplify"
    pipeline(f"builtin.module({passes})").run(module)
    with module.context:
        main, gradient = find(module, "main"), find(module, "main_grad")
        assert main is not None
        assert gradient is not None
        member = PlannedMember.alone(DEVICE)
        first, second = (block_cost(block_of(f, 0), member) for f in (main, gradient))
    return first.compute, second.compute


@pytest.mark.parametrize("name", MODELS)
def test_a_scan_is_judged_as_its_layers_written_out(name: str) -> None:
    scanned, written_out = judged(name, True), judged(name, False)
    assert scanned == pytest.approx(written_out, rel=NEAR)
