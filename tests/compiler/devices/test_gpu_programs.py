"""Programs of every kind, in three float types, compile for NVIDIA's and AMD's devices.

Nothing runs here: what the passes leave is compared in `test_target_ir.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import pcp
from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.tools import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GPUS = ("sm_80", "sm_90a", "gfx942")
TYPES = (jnp.bfloat16, jnp.float16, jnp.float32)
MODELS = Path(__file__).parents[3] / "examples" / "models"
PLACES = jnp.array([0, 2, 2, 1])


def _convolution(groups: int) -> Callable[..., Any]:
    def loss(x, k):
        dims = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(
            *(x, k, (2, 2), "SAME"),
            dimension_numbers=dims,
            feature_group_count=groups,
        )
        return jnp.square(y).mean()

    return loss


def _top_k(x, w):
    values, where = lax.top_k(x, 3)
    return (values * jnp.take_along_axis(w, where, 1)).sum()


def _scan(x, w):
    def step(h, _):
        h = jnp.tanh(h @ w)
        return h, h

    last, every = lax.scan(step, x, None, length=4)
    return jnp.square(last).mean() + every.mean()


def _while(x, w):
    def step(carry):
        return carry[0] + 1, jnp.tanh(carry[1] @ w)

    return lax.while_loop(lambda carry: carry[0] < 5, step, (0, x))[1].sum()


SQUARE = (16, 16), (16, 16)
#: A loss and the shapes of its two parameters.
LOSSES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "product": (lambda x, y: jnp.square(x @ y).mean(), (64, 32), (32, 48)),
    "convolution": (_convolution(1), (2, 8, 8, 4), (3, 3, 4, 8)),
    "groups": (_convolution(2), (2, 8, 8, 4), (3, 3, 2, 8)),
    "depthwise": (_convolution(8), (2, 8, 8, 8), (3, 3, 1, 8)),
    "gather": (lambda x, w: jnp.square(x[PLACES] @ w).mean(), *SQUARE),
    "scatter": (lambda x, w: jnp.square(x.at[PLACES].add(w[:4])).sum(), *SQUARE),
    "scatter_max": (lambda x, w: jnp.square(x.at[PLACES].max(w[:4])).sum(), *SQUARE),
    "sort": (lambda x, w: (jnp.sort(x, -1)[:, :2] * w[:, :2]).sum(), *SQUARE),
    "top_k": (_top_k, *SQUARE),
    "scan": (_scan, *SQUARE),
    "while": (_while, *SQUARE),
}


def _compiled(module: ir.Module, mode: str, **training: Any) -> Bundle:
    options = CompileOptions(targets=GPUS, mode=mode, timeout=600, **training)
    return driver.compile(module, options)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient(name: str, dtype: Any) -> None:
    loss, *shapes = LOSSES[name]
    whole = loss if name == "while" else jax.value_and_grad(loss, (0, 1))
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    text = jax.jit(whole).lower(*given).as_text()
    assert set(_compiled(parse(text), "forward").manifest.modules) == set(GPUS)


@pytest.mark.parametrize("name", ["mlp:MLP", "cnn:CNN", "llama_block:Llama", ""])
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    """Each of examples/models; the GPT is there as StableHLO."""
    path = MODELS / "nanogpt_small.mlir"
    if name:
        file, _, model = name.partition(":")
        path = tmp_path / "m.mlir"
        source = f"{MODELS / file}.py:{model}"
        sizes = ["--batch-size", "8", "--block-size", "16"]
        assert cli.main(["export", "--torch", source, *sizes, "-o", str(path)]) == 0
    training = {"optimizer": pcp.AdamW(lr=1e-3), "algorithm": "none"}
    bundle = _compiled(parse(path.read_text()), "train", **training)
    assert set(bundle.manifest.modules) == set(GPUS)
