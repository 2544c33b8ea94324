"""Sliding windows: reduce_window, select_and_scatter, convolution.

A dimension along which a window slides is cut like the result; each part needs its
windows' elements, some of which neighbours have.
"""

from typing import Any

from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, Window
from pcp.passes.sharding.factors import (
    PASS,
    REPLICATE,
    WINDOW,
    Dim,
    FactorRule,
    Reach,
    Rules,
)
from pcp.passes.sharding.rules.shapes import reaching, shape_of

#: A window of one element that moves by one.
_STILL = (1, 1, 1, 1, (0, 0))


def moving(window: Window) -> list[int]:
    """The dimensions along which a window does more than touch each element once."""
    entries = zip(
        window.sizes,
        window.strides,
        window.base_dilations,
        window.dilations,
        window.padding,
        strict=True,
    )
    return [d for d, entry in enumerate(entries) if entry != _STILL]


def reduce_window(op: ir.Operation) -> FactorRule:
    """Window j begins at stride * j - low and reaches over its dilated size."""
    window = Window.of(op)
    count = len(op.operands) // 2
    moved: dict[int, list[dict[str, Any]]] = {}
    for d in moving(window):
        entry = {
            "step": window.strides[d],
            "low": -window.padding[d][0],
            "extent": (window.sizes[d] - 1) * window.dilations[d],
            "base": window.base_dilations[d],
        }
        moved[d] = [entry] * count
    return reaching(op, moved)


def select_and_scatter(op: ir.Operation) -> FactorRule:
    """An element takes from every window that it is in, and those look around.

    The operand's elements within a window's size on both sides are enough to know
    what each of these windows selects.
    """
    window = Window.of(op)
    moved = {}
    for d in moving(window):
        around = window.sizes[d] - 1
        operand = {"low": -around, "extent": 2 * around}
        source = {
            "low": window.padding[d][0] - around,
            "extent": around,
            "base": window.strides[d],
        }
        moved[d] = [operand, source]
    return reaching(op, moved)


def convolution(op: ir.Operation) -> FactorRule:
    """Batch, features and spatial dimensions; with groups features are group-major.

    A spatial dimension is cut like the result, unless the kernel is the larger one:
    then (in the gradient with respect to a kernel) parts of the kernel leave partial
    sums.
    """
    conv = Convolution.of(op)
    rules = Rules()
    x, k, y = (shape_of(v) for v in (*op.operands, *op.results))
    (xb, xf, xs), (ki, ko, ks), (yb, yf, ys) = (
        conv.dims.input,
        conv.dims.kernel,
        conv.dims.output,
    )
    many = max(conv.feature_groups, conv.batch_groups)
    batch = rules.factor(y[yb])
    summed = rules.factor(k[ki], "sum")
    group = rules.factor(many)
    outs = rules.factor(k[ko] // many)
    left: dict[int, Dim] = {xb: (batch,), xf: (summed,)}
    if conv.feature_groups > 1:
        left[xf] = (group, summed)
    if conv.batch_groups > 1:
        left[xb] = (group, batch)
    kernel: dict[int, Dim] = {ki: (summed,), ko: (group, outs) if many > 1 else (outs,)}
    result: dict[int, Dim] = {yb: (batch,), yf: kernel[ko]}
    for s, (i, j, r) in enumerate(zip(xs, ks, ys, strict=True)):
        left[i], kernel[j], result[r] = _spatial(rules, conv, s, (x[i], k[j], y[r]))
    dims = [[d[i] for i in range(len(d))] for d in (left, kernel, result)]
    return rules.done(dims[:2], dims[2:])


def _spatial(
    rules: Rules, conv: Convolution, s: int, sizes: tuple[int, int, int]
) -> tuple[Dim, Dim, Dim]:
    """One spatial dimension of the input, the kernel and the result."""
    x, k, y = sizes
    stride, dilation = conv.strides[s], conv.rhs_dilation[s]
    low, d = -conv.padding[s][0], conv.dims.input[2][s]
    base = conv.lhs_dilation[s]
    if (k, stride, base, *conv.padding[s]) == (1, 1, 1, 0, 0):
        shared: Dim = (rules.factor(y, PASS),)
        return shared, (rules.factor(k, REPLICATE),), shared
    if k <= y:
        cut = rules.factor(y, WINDOW)
        reach = Reach(cut, 0, d, x, stride, low, (k - 1) * dilation, base)
        rules.reaches.append(reach)
        return (cut,), (rules.factor(k, REPLICATE),), (cut,)
    cut = rules.factor(k, "sum")
    step = -dilation if conv.reversal[s] else dilation
    first = low + (k - 1) * dilation if conv.reversal[s] else low
    rules.reaches.append(Reach(cut, 0, d, x, step, first, (y - 1) * stride, base))
    return (cut,), (cut,), (rules.factor(y, REPLICATE),)
