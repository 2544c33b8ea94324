"""Reshapes: both shapes as products of common factors."""

from math import gcd

from pcp.dialect.bindings import ir
from pcp.passes.sharding.factors import REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import shape_of


def reshape(op: ir.Operation) -> FactorRule:
    rules = Rules()
    operand, result = _common_factors(
        rules, shape_of(op.operands[0]), shape_of(op.results[0])
    )
    return rules.done([operand], [result])


def _common_factors(
    rules: Rules, a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[list[Dim], list[Dim]]:
    """Both shapes as products of common factors: `[8,16] -> [8,4,4]` is i,jk -> i,j,k.

    Where they have none (`[4,3] -> [6,2]` after the common 2), what is left up to the
    next place at which both agree cannot be cut.
    """
    if 0 in a:
        return rules.dims(a, REPLICATE), rules.dims(b, REPLICATE)
    left: list[Dim] = [() for _ in a]
    right: list[Dim] = [() for _ in b]
    for side, shape in ((left, a), (right, b)):
        for d, n in enumerate(shape):
            if n == 1:
                side[d] = (rules.factor(1, REPLICATE),)
    xs = [(d, n) for d, n in enumerate(a) if n != 1]
    ys = [(d, n) for d, n in enumerate(b) if n != 1]
    while xs and ys:
        (i, m), (j, n) = xs.pop(0), ys.pop(0)
        common = gcd(m, n)
        if common > 1:
            factor = rules.factor(common)
            left[i] += (factor,)
            right[j] += (factor,)
            if m > common:
                xs.insert(0, (i, m // common))
            if n > common:
                ys.insert(0, (j, n // common))
            continue
        _opaque(rules, left, (i, m), xs, right, (j, n), ys)
    return left, right


def _opaque(
    rules: Rules,
    left: list[Dim],
    x: tuple[int, int],
    xs: list[tuple[int, int]],
    right: list[Dim],
    y: tuple[int, int],
    ys: list[tuple[int, int]],
) -> None:
    """Use up dimensions of both sides until their products agree."""
    (i, m), (j, n) = x, y
    left[i] += (rules.factor(m, REPLICATE),)
    right[j] += (rules.factor(n, REPLICATE),)
    while m != n:
        if m < n:
            d, size = xs.pop(0)
            left[d] += (rules.factor(size, REPLICATE),)
            m *= size
        else:
            d, size = ys.pop(0)
            right[d] += (rules.factor(size, REPLICATE),)
            n *= size
