"""Attention as JAX's users write it: matched, and with JAX's numbers and slopes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers.iree_server import Iree

import pcp
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse
from pcp.passes.core.rewriting import functions, operations
from pcp.passes.kernels import objects, processors
from pcp.passes.kernels.own_kernels import OwnKernels

HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())
(SET, *_) = (s for s in HERE if objects.best("attention", s) == s)
LOW = float(np.finfo(np.float32).min)

library = jax.nn.dot_product_attention


def _written(q, k, v, hide: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """By hand, on [batch, position, head, width]."""
    repeats = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, repeats, 2) for x in (k, v))
    scores = hide(jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


def _level(scores: jax.Array) -> jax.Array:
    """A row of nothing but minus infinities is the mean of all values."""
    return jnp.where(_empty(scores), 0, scores)


def _empty(scores: jax.Array) -> jax.Array:
    return (scores == -jnp.inf).all(-1, keepdims=True)


def _of_torch(q, k, v, bias: np.ndarray) -> jax.Array:
    """PyTorch's, where a mask is added; on [batch, position, head, width]."""
    root = q.shape[-1] ** -0.25
    scores = jnp.einsum("bthd,bshd->bhts", q * root, k * root) + bias
    weights = jax.nn.softmax(_level(scores), -1)
    empty = jnp.broadcast_to(_empty(scores), weights.shape)
    weights = jax.lax.select(empty, jnp.zeros_like(weights), weights)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def _mask(rows: int, columns: int) -> np.ndarray:
    """Of two sequences, drawn; the second one's third row sees nothing."""
    mask = np.random.default_rng(1).random((2, 1, rows, columns)) < 0.5
    mask[..., 0] = True
    mask[1, :, 2] = False
    return mask


@dataclass(frozen=True)
class Form:
    """Attention of q [2, rows, heads, width] with k, v [2, columns, groups, width]."""

    attention: Callable
    rows: int = 40
    columns: int = 40
    heads: int = 2
    groups: int = 2
    width: int = 16

    def parameters(self) -> dict[str, np.ndarray]:
        """Drawn q, k, v, and the weights of the results."""
        random = np.random.default_rng(3)
        shapes = {
            "k": (2, self.columns, self.groups, self.width),
            "q": (2, self.rows, self.heads, self.width),
            "v": (2, self.columns, self.groups, self.width),
            "w": (2, self.rows, self.heads, self.width),
        }
        return {
            name: random.normal(size=shape).astype(np.float32)
            for name, shape in shapes.items()
        }

    def loss(self, x: dict[str, jax.Array]) -> jax.Array:
        """One number."""
        return (self.attention(x["q"], x["k"], x["v"]) * x["w"]).sum()


FORMS = {
    "library": Form(library, 33, 47),
    "library_causal_groups": Form(
        partial(library, is_causal=True), heads=6, groups=2, width=32
    ),
    "library_lengths": Form(
        partial(library, key_value_seq_lengths=jnp.array([5, 40]))
    ),
    "library_mask": Form(partial(library, mask=_mask(40, 40))),
    "library_bias": Form(
        lambda q, k, v: library(
            q, k, v, bias=jnp.sin(jnp.arange(3200.0)).reshape(1, 2, 40, 40)
        )
    ),
    "written_groups": Form(
        lambda q, k, v: _written(
            q, k, v, lambda s: jnp.where(np.tri(40, dtype=bool), s, -jnp.inf)
        ),
        heads=4,
    ),
    "a_row_sees_nothing": Form(
        lambda q, k, v: _written(q, k, v, lambda s: jnp.where(_mask(37, 50), s, -1e9)),
        37,
        50,
    ),
    "a_row_of_minus_infinities": Form(
        lambda q, k, v: _written(
            q, k, v, lambda s: jnp.where(_mask(40, 40), s, -jnp.inf)
        )
    ),
    "rows_of_zeros": Form(
        partial(_of_torch, bias=np.where(_mask(37, 50), 0, -np.inf).astype("f")), 37, 50
    ),
    "rows_of_zeros_causal": Form(
        partial(_of_torch, bias=np.where(np.tri(40, 40, -1), 0, -np.inf).astype("f"))
    ),
    "rows_of_means": Form(
        lambda q, k, v: _written(
            q, k, v, lambda s: _level(jnp.where(_mask(40, 40), s, -jnp.inf))
        )
    ),
    "two_masks": Form(
        lambda q, k, v: _written(
            q,
            k,
            v,
            lambda s: jnp.where(
                np.tri(40, dtype=bool), jnp.where(_mask(40, 40), s, LOW), -5.0
            ),
        )
    ),
    "added_and_causal": Form(
        lambda q, k, v: _written(
            q,
            k,
            v,
            lambda s: jnp.where(
                np.tri(40, dtype=bool),
                s + jnp.where(_mask(40, 40)[:, :, :1], 0, -1e9),
                -jnp.inf,
            ),
        )
    ),
    "upper": Form(
        lambda q, k, v: _written(
            q, k, v, lambda s: jnp.where(np.tri(40, dtype=bool).T, s, -jnp.inf)
        )
    ),
    "wide": Form(partial(library, is_causal=True), 137, 137, 1, 1, 128),
}  # fmt: skip


def _grad(name: str, form: Form) -> str:
    module = pcp.from_jax(form.loss, form.parameters())
    lowered = driver.lower(module, CompileOptions(mode="grad")).module
    (grad,) = (
        op for op in functions(lowered)
        if ir.StringAttr(op.attributes["sym_name"]).value == "grad"
    )  # fmt: skip
    return str(grad).replace("@grad", f"@{name}")


def _own(text: str) -> ir.Module:
    context = make_context()
    context.allow_unregistered_dialects = True  # IREE's barriers
    module = parse(text, context)
    OwnKernels(set=SET).run(module)
    return module


QUICK = ("library_causal_groups",)


OTHER = [name for name in FORMS if name not in QUICK]


@pytest.mark.parametrize(
    "names",
    # Slow: the same code with other numbers, compiled and run.
    [QUICK, *(pytest.param(OTHER[i::4], marks=pytest.mark.slow) for i in range(4))],
    ids=",".join,
)
def test_numbers_and_slopes_are_those_of_jax(iree: Iree, names: list[str]) -> None:
    module = _own("\n".join(_grad(name, FORMS[name]) for name in names))
    ops = [op.name for op in operations(module)]
    assert ops.count("flow.dispatch") == 2 * len(names)
    assert "stablehlo.exponential" not in ops
    assert "stablehlo.dot_general" not in ops
    given = {name: FORMS[name].parameters() for name in names}
    calls = {name: list(x.values()) for name, x in given.items()}
    with jax.default_matmul_precision("highest"):
        for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
            assert not isinstance(got, str), got
            total, slopes = jax.value_and_grad(FORMS[name].loss)(given[name])
            terms = np.abs(slopes["w"] * given[name]["w"]).sum()
            assert not abs(got[0] - total) > 2.0**-18 * terms, name
            for value, want in zip(got[1:], slopes.values(), strict=True):
                _assert_near(value, np.asarray(want), name)


def _assert_near(value: np.ndarray, want: np.ndarray, name: str) -> None:
    """No numbers at the same places, elsewhere to 2⁻¹⁷ of the largest."""
    known = np.isfinite(want)
    assert np.array_equal(np.isnan(value), ~known), name
    error = np.abs(value - want)[known].max() / np.abs(want[known]).max()
    assert error < 2.0**-17, (name, error)


@pytest.mark.slow  # a program more
def test_weights_of_slopes_are_those_of_sums_where_scores_are_large(iree: Iree) -> None:
    form = Form(lambda q, k, v: library(q * 3000, k, v), width=32)
    given = form.parameters()
    module = _own(_grad("main", form))
    assert [op.name for op in operations(module)].count("flow.dispatch") == 2
    _, _, _, dv, _ = iree.run(str(module), list(given.values()))
    _assert_near(dv.sum(1), given["w"].sum(1), "dv")  # a row's weights add up to one


def _each_row(q, k, v) -> jax.Array:
    """Values that differ by row, too, as relative positions are."""
    values = v[:, None] * (1 + jnp.arange(40.0)[:, None, None, None])
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k), -1)
    return jnp.einsum("bhts,btshd->bthd", weights, values)


OTHERS = {
    "weights that something else reads": lambda q, k, v: (
        _written(q, k, v, lambda s: s + 0.1 * jax.nn.softmax(s, -1))
    ),
    "a bias that is learnt": lambda q, k, v: (
        _written(q, k, v, lambda s: s + k[:, :1, :, :1].transpose(0, 2, 1, 3))
    ),
    "scores that are bent": lambda q, k, v: (
        _written(q, k, v, lambda s: jnp.tanh(s))
    ),
    "weights that are dropped": lambda q, k, v: (
        jnp.einsum(
            "bhts,bshd->bthd",
            jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k), -1)
            * _mask(40, 40),
            v,
        )
    ),
    "numbers that are not negative": lambda q, k, v: (
        _written(q, k, v, lambda s: jnp.where(_mask(40, 40), s, 0.0))
    ),
    "each row's own values": lambda q, k, v: _each_row(
        *jax.lax.stop_gradient((q, k, v))
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", OTHERS)
def test_what_is_no_attention_stays(why: str) -> None:
    module = _own(_grad("main", Form(OTHERS[why])))
    names = [op.name for op in operations(module)]
    assert "flow.dispatch" not in names
    assert "stablehlo.exponential" in names


LAYERS = 3


@dataclass(frozen=True)
class Layers(Form):
    """Layers of attention in a loop, each with weights of its own."""

    def parameters(self) -> dict[str, np.ndarray]:
        """Drawn weights of all layers, and what the first one gets."""
        random, wide = np.random.default_rng(4), self.heads * self.width
        weights = {
            name: random.normal(size=(LAYERS, wide, wide), scale=wide**-0.5)
            for name in ("k", "o", "q", "v")
        }
        given = weights | {"x": random.normal(size=(2, self.rows, wide))}
        return {name: value.astype(np.float32) for name, value in given.items()}

    def loss(self, x: dict[str, jax.Array]) -> jax.Array:
        """One number."""
        weights = {name: x[name] for name in ("k", "o", "q", "v")}
        out, _ = jax.lax.scan(lambda y, w: (self._layer(y, w), None), x["x"], weights)
        return (out**2).sum()

    def _layer(self, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
        heads = (*x.shape[:2], self.heads, self.width)
        q, k, v = ((x @ weights[name]).reshape(heads) for name in "qkv")
        return x + self.attention(q, k, v).reshape(x.shape) @ weights["o"]


LOOP = Layers(partial(library, is_causal=True))


def test_a_loop_of_layers_keeps_no_weights() -> None:
    text = str(_own(_grad("main", LOOP)))
    assert text.count("flow.dispatch") == 3  # the largest of rows are found twice
    assert "stablehlo.exponential" not in text
    assert f"tensor<{LAYERS}x2x40x32xf32>" in text  # what layers get is kept
    assert "2x40x40xf32" not in text


def _each_layer(given: dict[str, jax.Array], layers: list[dict]) -> jax.Array:
    """The loss of layers that are no loop."""
    out = given["x"]
    for weights in layers:
        out = LOOP._layer(out, weights)
    return (out**2).sum()


def test_layers_that_are_rolled_keep_no_weights() -> None:
    given = LOOP.parameters()
    layers = [{name: given[name][0] for name in "koqv"} for _ in range(4)]
    module = pcp.from_jax(_each_layer, {"x": given["x"]}, layers)
    options = CompileOptions(mode="grad", layers="rolled")
    text = str(_own(str(driver.lower(module, options).module)))
    assert text.count("stablehlo.while") == 3  # two of them of the derivative
    assert text.count('"flow.dispatch"') == 4
    assert "stablehlo.exponential" not in text
    assert "2x40x40xf32" not in text


@pytest.mark.slow  # Compiled and run; what is in the loop has quick tests.
def test_a_loop_of_layers_has_the_slopes_of_jax(iree: Iree) -> None:
    given = LOOP.parameters()
    got = iree.run(str(_own(_grad("main", LOOP))), list(given.values()))
    with jax.enable_x64(True):  # f32 of JAX has errors of its own, layer by layer
        exact = {name: value.astype(np.float64) for name, value in given.items()}
        total, slopes = jax.value_and_grad(LOOP.loss)(exact)
    assert got[0] == pytest.approx(float(total), rel=1e-5)
    for value, name in zip(got[1:], slopes, strict=True):
        _assert_near(value, np.asarray(slopes[name]), name)
