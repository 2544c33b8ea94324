"""Derivatives of random programs, whole and on a mesh.

The program is one of `spmd`, or of `nested`. Whole and in f64, at numbers where no two
are equal but by construction, what reverse mode gives, what forward mode gives and a
difference of two values are one number; what is stopped keeps its value in that. A
difference that is another one at each step says nothing: it met a jump. On its mesh the
program of reverse mode gives what it gives whole.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from math import isclose, ulp

import numpy as np
from helpers.oracles.frozen import frozen
from helpers.oracles.spmd import partitioned, whole
from helpers.random_programs.nested import NESTED
from helpers.random_programs.spmd import random_program

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

#: Of differences. Where slopes inside are large, a step meets many wraps.
STEPS = (1e-6, 1e-7, 1e-8)
Arrays = list[np.ndarray]


def derived(text: str, mode: str) -> str:
    """The program of `pcp-vjp` or `pcp-jvp` in the place of `@main`."""
    module = parse(text)
    pipeline(f"builtin.module({mode}{{func=main name=derived}})").run(module)
    for view in list(module.body.operations):
        op = view.operation
        if op.name == "func.func":
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if name == "main":
                op.erase()
            else:
                op.attributes["sym_name"] = ir.StringAttr.get("main", module.context)
    return str(module)


def _in_f64(text: str) -> str:
    text = text.replace("0xFF800000", "0xFFF0000000000000")
    return re.sub(r"([<x])f32>", r"\1f64>", text)


def check(seed: int, *, parts: bool = True) -> None:
    """Both of the above."""
    text, inputs = random_program(seed, parts=parts)
    _check_whole(_in_f64(text), seed, inputs)
    _check_on_mesh(text, seed, inputs)


def check_nested(seed: int) -> None:
    """The same of a program with programs inside, and stops; whole alone."""
    text, inputs = random_program(seed, ops=NESTED)
    _check_whole(_in_f64(text), seed, inputs)


def _check_whole(text: str, seed: int, like: Arrays) -> None:
    rng = np.random.default_rng([seed, 1])
    x, v = ([rng.normal(size=a.shape) for a in like] for _ in range(2))
    results = whole(text, x)
    g = [rng.normal(size=y.shape) for y in results]
    forward = whole(derived(text, "pcp-jvp"), [*x, *v])[len(g) :]
    reverse = whole(derived(text, "pcp-vjp"), [*x, *g])[len(g) :]
    expected = _pairing(g, forward)
    size = _pairing(map(np.abs, g), map(np.abs, forward))
    assert abs(_pairing(reverse, v) - expected) <= 1e-9 * (1 + 2 * size), (
        f"seed {seed}: two modes"
    )
    most = max((float(np.abs(y).max(initial=0)) for y in results), default=0.0)
    seen: list[float] = []
    for step in STEPS:
        found = _difference(text, x, v, g, step)
        rough = 1e-5 * (1 + 2 * size) + ulp(most) / step * sum(a.size for a in g)
        if abs(found - expected) <= rough:
            return
        seen.append(found)
    steady = any(isclose(a, b, rel_tol=1e-3) for a, b in pairwise(seen))
    assert not steady, f"seed {seed}: {seen}, not {expected}"


def _difference(text: str, x: Arrays, v: Arrays, g: Arrays, step: float) -> float:
    at_x = frozen(text)
    ends = [whole(at_x, [*_moved(x, v, h), *x]) for h in (step, -step)]
    return _pairing(g, [(a - b) / (2 * step) for a, b in zip(*ends, strict=True)])


def _moved(x: Arrays, v: Arrays, h: float) -> Arrays:
    return [a + h * b for a, b in zip(x, v, strict=True)]


def _pairing(xs: Iterable[np.ndarray], ys: Iterable[np.ndarray]) -> float:
    return float(sum(np.sum(x * y) for x, y in zip(xs, ys, strict=True)))


def _check_on_mesh(text: str, seed: int, inputs: Arrays) -> None:
    """Integers; where ties share a cotangent by three, to rounding."""
    rng = np.random.default_rng([seed, 2])
    program = derived(text, "pcp-vjp")
    results = whole(text, inputs)
    g = [rng.integers(-2, 3, y.shape).astype(np.float32) for y in results]
    expected = whole(program, [*inputs, *g])
    found = partitioned(program, [*inputs, *g])
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5, err_msg=f"seed {seed}, {i}")
