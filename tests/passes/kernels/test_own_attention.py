"""Attention by our own kernels: numpy's numbers and slopes; what stays as it is."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse
from pcp.passes.core.rewriting import functions, operations
from pcp.passes.kernels import objects, processors
from pcp.passes.kernels.own_kernels import OwnKernels

HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())
SETS = [s for s in HERE if objects.best("attention", s) == s]


@dataclass(frozen=True)
class Case:
    """Sequences, heads, positions, width of a head; how it is written."""

    batch: int
    heads: int
    block: int
    width: int
    jax: bool = False
    causal: bool = True

    @property
    def text(self) -> str:
        """The sum of attention of x's thirds, times w."""
        b, h, t, d = self.batch, self.heads, self.block, self.width
        n = h * d
        x, w, part, split = (
            f"tensor<{b}x{t}x{e}xf32>" for e in (3 * n, n, n, f"{h}x{d}")
        )
        y, s, r = (f"tensor<{b}x{h}x{t}x{e}xf32>" for e in (d, t, 1))
        m = f"tensor<{b}x{h}x{t}xf32>"
        slices = "".join(
            f"  %{name}0 = stablehlo.slice %x [0:{b}, 0:{t}, {i * n}:{(i + 1) * n}] "
            f": ({x}) -> {part}\n"
            f"  %{name}1 = stablehlo.reshape %{name}0 : ({part}) -> {split}\n"
            for i, name in enumerate("qkv")
        )
        products = self._jax(s, split, y) if self.jax else self._torch(s, split, y)
        scores, mixed = products
        return f"""
func.func @main(%x: {x}, %w: {w}) -> tensor<f32> {{
{slices}{scores}  %scale = stablehlo.constant dense<{d**0.5}> : {s}
  %s1 = stablehlo.divide %s0, %scale : {s}
{self._masked(s)}  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%s2 init: %low) applies stablehlo.maximum
      across dimensions = [3]
      : ({s}, tensor<f32>) -> {m}
  %m1 = stablehlo.reshape %m : ({m}) -> {r}
  %m2 = stablehlo.broadcast_in_dim %m1, dims = [0, 1, 2, 3] : ({r}) -> {s}
  %s3 = stablehlo.subtract %s2, %m2 : {s}
  %e = stablehlo.exponential %s3 : {s}
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3]
      : ({s}, tensor<f32>) -> {m}
  %l1 = stablehlo.broadcast_in_dim %l, dims = [0, 1, 2] : ({m}) -> {s}
  %p = stablehlo.divide %e, %l1 : {s}
{mixed}  %y1 = stablehlo.transpose %y, dims = [0, 2, 1, 3] : ({y}) -> {split}
  %y2 = stablehlo.reshape %y1 : ({split}) -> {w}
  %y3 = stablehlo.multiply %y2, %w : {w}
  %sum = stablehlo.reduce(%y3 init: %zero) applies stablehlo.add
      across dimensions = [0, 1, 2] : ({w}, tensor<f32>) -> tensor<f32>
  return %sum : tensor<f32>
}}"""

    def _jax(self, s: str, split: str, y: str) -> tuple[str, str]:
        places = "batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]"
        mixing = "batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1]"
        return (
            f"  %s0 = stablehlo.dot_general %q1, %k1, {places} "
            f": ({split}, {split}) -> {s}\n",
            f"  %y = stablehlo.dot_general %p, %v1, {mixing} : ({s}, {split}) -> {y}\n",
        )

    def _torch(self, s: str, split: str, y: str) -> tuple[str, str]:
        b, h, t, d = self.batch, self.heads, self.block, self.width
        turned = f"tensor<{b}x{h}x{d}x{t}xf32>"
        flat, across, scores = (
            f"tensor<{b * h}x{e}xf32>" for e in (f"{t}x{d}", f"{d}x{t}", f"{t}x{t}")
        )
        places = "batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        return (
            f"""  %q2 = stablehlo.transpose %q1, dims = [0, 2, 1, 3] : ({split}) -> {y}
  %k2 = stablehlo.transpose %k1, dims = [0, 2, 3, 1] : ({split}) -> {turned}
  %q3 = stablehlo.reshape %q2 : ({y}) -> {flat}
  %k3 = stablehlo.reshape %k2 : ({turned}) -> {across}
  %s00 = stablehlo.dot_general %q3, %k3, {places} : ({flat}, {across}) -> {scores}
  %s0 = stablehlo.reshape %s00 : ({scores}) -> {s}
""",
            f"""  %v2 = stablehlo.transpose %v1, dims = [0, 2, 1, 3] : ({split}) -> {y}
  %v3 = stablehlo.reshape %v2 : ({y}) -> {flat}
  %p1 = stablehlo.reshape %p : ({s}) -> {scores}
  %y0 = stablehlo.dot_general %p1, %v3, {places} : ({scores}, {flat}) -> {flat}
  %y = stablehlo.reshape %y0 : ({flat}) -> {y}
""",
        )

    def _masked(self, s: str) -> str:
        """Hidden by a mask made of indices."""
        hidden = s.replace("f32", "i1")
        square, ids = (f"tensor<{self.block}x{self.block}x{e}>" for e in ("i1", "i32"))
        if not self.causal:
            return f"  %s2 = stablehlo.reshape %s1 : ({s}) -> {s}\n"
        chosen = "%s1, %hidden" if self.jax else "%hidden, %s1"
        direction = "GE" if self.jax else "LT"
        return f"""  %rows = stablehlo.iota dim = 0 : {ids}
  %columns = stablehlo.iota dim = 1 : {ids}
  %seen = stablehlo.compare {direction}, %rows, %columns : ({ids}, {ids}) -> {square}
  %mask = stablehlo.broadcast_in_dim %seen, dims = [2, 3] : ({square}) -> {hidden}
  %hidden = stablehlo.constant dense<0xFF800000> : {s}
  %s2 = stablehlo.select %mask, {chosen} : {hidden}, {s}
"""

    def arguments(self, random: np.random.Generator) -> list[np.ndarray]:
        """x and w."""
        width = self.heads * self.width
        shapes = [(self.batch, self.block, e * width) for e in (3, 1)]
        return [random.normal(size=shape).astype(np.float32) for shape in shapes]

    def wanted(self, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
        """The sum, and its slopes by x and w, in f64."""
        shape = (self.batch, self.block, -1, self.heads, self.width)
        q, k, v = x.astype(np.float64).reshape(shape).transpose(2, 0, 3, 1, 4)
        (g,) = w.astype(np.float64).reshape(shape).transpose(2, 0, 3, 1, 4)
        scale = self.width**-0.5
        s = q @ k.swapaxes(-1, -2) * scale
        if self.causal:
            s = np.where(np.tri(self.block, dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        y, dp = p @ v, g @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        dx = np.stack([ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g])
        flat = y.transpose(0, 2, 1, 3).reshape(w.shape)
        return [(y * g).sum(), dx.transpose(1, 3, 0, 2, 4).reshape(x.shape), flat]


CASES = {
    "one_block": Case(2, 3, 32, 16),
    "jax": Case(2, 2, 96, 32, jax=True),
    "no_mask": Case(1, 2, 160, 48, causal=False),
    "jax_no_mask": Case(3, 1, 96, 64, jax=True, causal=False),
    "many_rows": Case(1, 2, 288, 64),
    "tails": Case(1, 2, 75, 48),
}


def _slopes(name: str, case: Case) -> str:
    """What pcp makes of a case, as a function of that name."""
    module = driver.lower(parse(case.text), CompileOptions(mode="grad")).module
    (grad,) = (
        op for op in functions(module)
        if ir.StringAttr(op.attributes["sym_name"]).value == "grad"
    )  # fmt: skip
    return str(grad).replace("@grad", f"@{name}")


def _own(text: str, instructions: str) -> ir.Module:
    context = make_context()
    context.allow_unregistered_dialects = True  # IREE's barriers
    module = parse(text, context)
    OwnKernels(set=instructions).run(module)
    return module


@pytest.fixture(scope="module")
def lowered() -> str:
    """The cases in one module."""
    return "\n".join(_slopes(name, case) for name, case in CASES.items())


@pytest.mark.slow  # test_attention_forms.py has both
@pytest.mark.parametrize(
    "instructions",
    # Slow: narrower registers run the same source, compiled for them.
    [*SETS[:1], *(pytest.param(s, marks=pytest.mark.slow) for s in SETS[1:])],
)
def test_numbers_and_slopes(iree: Iree, lowered: str, instructions: str) -> None:
    module = _own(lowered, instructions)
    names = [op.name for op in operations(module)]
    assert names.count("flow.dispatch") == 2 * len(CASES)
    assert "stablehlo.exponential" not in names
    assert "stablehlo.dot_general" not in names
    random = np.random.default_rng(5)
    calls = {name: case.arguments(random) for name, case in CASES.items()}
    for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
        assert not isinstance(got, str), got
        total, *wanted = CASES[name].wanted(*calls[name])
        terms = np.abs(wanted[1] * calls[name][1]).sum()
        assert abs(got[0] - total) <= 2.0**-18 * terms, name
        for value, want in zip(got[1:], wanted, strict=True):
            error = np.abs(value - want).max() / np.abs(want).max()
            assert error < 2.0**-18, (name, error)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(iree: Iree, bad: float) -> None:
    case = Case(2, 1, 64, 16)
    x, w = case.arguments(np.random.default_rng(6))
    x[1, 40, 3] = bad  # of q: one row of scores
    module = _own(_slopes("main", case), SETS[0])
    total, dx, dw = iree.run(str(module), [x, w])
    assert not np.isfinite(total)
    assert np.isfinite(dx[0]).all()
    assert np.isfinite(dw[0]).all()
    assert not np.isfinite(dw[1, 40]).any()
    assert np.isfinite(dw[1, :40]).all()
    assert not np.isfinite(dx[1, 40, :16]).any()


STAYS = {
    "few positions": Case(1, 2, 15, 16),
    "an odd width": Case(1, 2, 64, 24),
    "too wide": Case(1, 2, 160, 144),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_stays(why: str) -> None:
    module = _own(_slopes("main", STAYS[why]), "x86-64")
    assert "flow.dispatch" not in [op.name for op in operations(module)]


CHANGES = {
    "no largest is subtracted": ("stablehlo.maximum", "stablehlo.minimum"),
    "one choice for all": (
        "%s2 = stablehlo.select %mask, %hidden, %s1 : tensor<1x2x64x64xi1>",
        """%x0 = stablehlo.slice %x [0:1, 0:1, 0:1]
      : (tensor<1x64x96xf32>) -> tensor<1x1x1xf32>
  %x1 = stablehlo.reshape %x0 : (tensor<1x1x1xf32>) -> tensor<f32>
  %all = stablehlo.compare NE, %x1, %x1 : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %s2 = stablehlo.select %all, %hidden, %s1 : tensor<i1>"""),
}  # fmt: skip


@pytest.mark.parametrize("why", CHANGES)
def test_what_is_no_attention_stays(why: str) -> None:
    text = Case(1, 2, 64, 16).text
    assert CHANGES[why][0] in text
    module = _own(text.replace(*CHANGES[why]), "x86-64")
    names = [op.name for op in operations(module)]
    assert "flow.dispatch" not in names
    assert names.count("stablehlo.dot_general") == 2
