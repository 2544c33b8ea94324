"""Gradient programs of real models, and the ways to spread them over a mesh.

A plan is a function from an argument's name and shape to the axes of its dimensions;
gradients lie as their parameters do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers.models import jax_training
from helpers.oracles.spmd import add_mesh
from helpers.servers.interpreter import Interpreter

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.passes.core.functions import Port
from pcp.passes.sharding.layout import to_attribute

BATCH, TIME = 4, 8

#: (argument's name, its shape) -> axes of each dimension, for those that are cut.
Plan = Callable[[str, tuple[int, ...]], dict[int, tuple[str, ...]]]


@dataclass(frozen=True)
class Model:
    """A loss over named parameters and data, with arguments to run it on."""

    loss: Callable[..., Any]
    params: Any
    data: tuple[np.ndarray, ...]

    @property
    def names(self) -> list[str]:
        """Each argument of `@main` by its path: `layers.0.qkv`, `data.0`."""
        paths = jax.tree_util.tree_flatten_with_path(self.params)[0]
        own = [".".join(_key(k) for k in path) for path, _ in paths]
        return own + [f"data.{i}" for i in range(len(self.data))]

    @property
    def arguments(self) -> list[np.ndarray]:
        """The parameters' leaves, then the data."""
        return [*jax.tree.leaves(self.params), *self.data]


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", entry)))


def _mlp(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    hidden = jnp.tanh(hidden @ params["w2"] + params["b2"])
    return jnp.mean((hidden @ params["w3"] - y) ** 2)


def _block(params: Any, x: Any, y: Any) -> Any:
    """A transformer block with separate projections, on embedded tokens."""
    heads = 4
    shape = (*x.shape[:2], heads, -1)
    q, k, v = ((x @ params[n]).reshape(shape) for n in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
    x = x + mixed @ params["out"]
    x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
    return jnp.mean((x - y) ** 2)


def _scene(params: Any, images: Any, y: Any) -> Any:
    """Convolutions, plain, dilated and strided, and both poolings, on images."""

    def convolve(x: Any, name: str, **how: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        how = {"window_strides": (1, 1), "padding": "SAME"} | how
        return jax.lax.conv_general_dilated(
            x, params[name], dimension_numbers=dims, **how
        )

    x = jnp.tanh(convolve(images, "c1"))
    x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jnp.tanh(convolve(x, "c2", rhs_dilation=(2, 2)))
    x = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"
    )
    x = jnp.tanh(convolve(x, "c3", window_strides=(2, 2)))
    return jnp.mean((x.mean((1, 2)) @ params["out"] - y) ** 2)


def _tokens(batch: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3)
    return tuple(
        random.integers(0, jax_training.VOCABULARY, (2, batch, TIME), np.int32)
    )


@cache
def models() -> dict[str, Model]:
    """An MLP, a transformer block, a CNN, a GPT and a Llama block, small."""
    random = np.random.default_rng(4)

    def normal(*shape: int) -> np.ndarray:
        return (0.3 * random.normal(size=shape)).astype(np.float32)

    mlp = {
        "w1": normal(12, 16),
        "b1": normal(16),
        "w2": normal(16, 8),
        "b2": normal(8),
        "w3": normal(8, 4),
    }
    found = {"mlp": Model(_mlp, mlp, (normal(8, 12), normal(8, 4)))}
    block = {n: normal(16, 16) for n in ("q", "k", "v", "out")}
    block |= {"up": normal(16, 32), "down": normal(32, 16)}
    found["block"] = Model(_block, block, (normal(4, 8, 16), normal(4, 8, 16)))
    for name in ("gpt", "llama"):
        loss, params, _ = jax_training.CASES[name]
        found[name] = Model(loss, params, _tokens(BATCH))
    found["gpt8"] = Model(jax_training.CASES["gpt"][0], found["gpt"].params, _tokens(8))
    loss, params, data = jax_training.CASES["cnn"]
    found["cnn"] = Model(loss, params, data)
    scene = {
        "c1": normal(3, 3, 3, 8),
        "c2": normal(3, 3, 8, 8),
        "c3": normal(3, 3, 8, 4),
        "out": normal(4, 2),
    }
    found["scene"] = Model(_scene, scene, (normal(1, 30, 16, 3), normal(1, 2)))
    return found


@cache
def gradient_text(name: str) -> str:
    """`@main(params, data) -> (loss, gradients)` without a mesh."""
    model = models()[name]
    text = (
        jax.jit(model.loss, keep_unused=True).lower(model.params, *model.data).as_text()
    )
    module = parse(text)
    wrt = ",".join(str(i) for i in range(len(jax.tree.leaves(model.params))))
    pipeline(
        f"builtin.module(inline,symbol-dce,pcp-grad{{func=main wrt={wrt}}},"
        "func.func(chlo-legalize-to-stablehlo),pcp-simplify,cse)"
    ).run(module)
    with module.context:
        for op in list(module.body.operations):
            if ir.StringAttr(op.attributes["sym_name"]).value != "main_grad":
                op.operation.erase()
        module.body.operations[0].attributes["sym_name"] = ir.StringAttr.get("main")
    return str(module)


def whole_gradient(name: str, interpreter: Interpreter) -> list[np.ndarray]:
    """What `gradient_text` gives for the model's arguments."""
    return interpreter.run(gradient_text(name), models()[name].arguments)


@cache
def training_text(name: str) -> str:
    """The model's loss `@main(params, data)` with names and roles."""
    return text_of(models()[name])


def with_batch(name: str, batch: int) -> Model:
    """A model with more examples, drawn anew."""
    model, random = models()[name], np.random.default_rng(5)
    data = tuple(
        random.normal(size=(batch, *x.shape[1:])).astype(np.float32) for x in model.data
    )
    return Model(model.loss, model.params, data)


def text_of(model: Model) -> str:
    """A model's loss with names and roles."""
    text = jax.jit(model.loss, keep_unused=True).lower(model.params, *model.data)
    module = parse(text.as_text())
    with module.context:
        main = module.body.operations[0].operation
        params = len(model.names) - len(model.data)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                Port(n, "param" if i < params else "data", None).attributes()
                for i, n in enumerate(model.names)
            ]
        )
    return str(module)


def annotate(name: str, axes: dict[str, int], plan: Plan) -> str:
    """The gradient program with a mesh and the plan's shardings on its border."""
    model = models()[name]
    module = parse(gradient_text(name))
    layouts = [
        layout(plan, n, np.shape(a))
        for n, a in zip(model.names, model.arguments, strict=True)
    ]
    count = len(model.names) - len(model.data)
    with module.context:
        main = module.body.operations[0].operation
        main.attributes["arg_attrs"] = _entries(layouts)
        main.attributes["res_attrs"] = _entries([Layout(()), *layouts[:count]])
        add_mesh(module, axes)
    return str(module)


def layout(plan: Plan, name: str, shape: tuple[int, ...]) -> Layout:
    """How a plan lays an argument."""
    cut = plan(name, shape)
    return Layout(tuple(cut.get(d, ()) for d in range(len(shape))))


def fits(name: str, axes: dict[str, int], plan: Plan) -> bool:
    """Whether every dimension has room for the axes that the plan cuts it along."""
    model, mesh = models()[name], Mesh("m", axes)
    return all(
        layout(plan, n, np.shape(a)).fits(np.shape(a), mesh)
        for n, a in zip(model.names, model.arguments, strict=True)
    )


def _entries(layouts: Sequence[Layout]) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [ir.DictAttr.get({"pcp.sharding": to_attribute(x, "m")}) for x in layouts]
    )


# --- plans ---


def dp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Every member has a part of the batch."""
    return {0: ("dp",)} if name.startswith("data.") else {}


#: The dimension that each kind of weight is cut along, as in Megatron-LM.
_COLUMNS = ("qkv", "q", "k", "v", "up", "gate", "w1", "w3", "b1", "head", "c1")
_ROWS = ("out", "down", "token", "w2")


def tp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Column-parallel, then row-parallel; the vocabulary cut."""
    last = name.rpartition(".")[2]
    if last in _COLUMNS:
        return {len(shape) - 1: ("tp",)}
    return {0: ("tp",)} if last in _ROWS else {}


def zero3(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """The batch and every parameter cut along dp."""
    if name.startswith("data."):
        return {0: ("dp",)}
    return {0: ("dp",)} if shape and shape[0] >= 2 else {}


def dp_tp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Both."""
    return dp(name, shape) | tp(name, shape)


def zero3_tp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Parameters cut along tp, and along dp in another dimension."""
    cut = dp_tp(name, shape)
    if name.startswith("data."):
        return cut
    free = [d for d, n in enumerate(shape) if d not in cut and n >= 2]
    return cut | ({free[0]: ("dp",)} if free else {})


def sp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Every member has a part of the sequence."""
    return {1: ("sp",)} if name.startswith("data.") else {}


def dp_sp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """A part of the sequences of a part of the batch."""
    return dp(name, shape) | sp(name, shape)


def sp_tp(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """A part of the sequence, and of the weights."""
    return sp(name, shape) | tp(name, shape)


#: Plan name -> (mesh, plan).
PLANS: dict[str, tuple[dict[str, int], Plan]] = {
    "dp2": ({"dp": 2}, dp),
    "dp3": ({"dp": 3}, dp),
    "dp4": ({"dp": 4}, dp),
    "tp2": ({"tp": 2}, tp),
    "tp4": ({"tp": 4}, tp),
    "zero3": ({"dp": 4}, zero3),
    "dp2-tp2": ({"dp": 2, "tp": 2}, dp_tp),
    "zero3-tp2": ({"dp": 2, "tp": 2}, zero3_tp),
}

#: Those of models that look at sequences.
SEQUENCES: dict[str, tuple[dict[str, int], Plan]] = {
    "sp4": ({"sp": 4}, sp),
    "dp2-sp2": ({"dp": 2, "sp": 2}, dp_sp),
    "sp2-tp2": ({"sp": 2, "tp": 2}, sp_tp),
}


def spatial(*axes: str) -> Plan:
    """Images cut along rows, or along rows and columns."""

    def plan(name: str, shape: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
        if name != "data.0":
            return {}
        return {d: (axis,) for d, axis in enumerate(axes, 1)}

    return plan


#: Those of models that look at images.
SPATIAL: dict[str, tuple[dict[str, int], Plan]] = {
    "rows4": ({"rows": 4}, spatial("rows")),
    "rows2-columns2": ({"rows": 2, "columns": 2}, spatial("rows", "columns")),
}
