"""Random programs of elementwise ops, in every number type; see `dot_points`."""

from typing import Any

import numpy as np
from helpers.dot.points import (
    Maker,
    Point,
    Rng,
    lowering,
    shape_of,
    spread,
    type_of,
)
from jax import lax
from jax import numpy as jnp

# --- elementwise ops, written out ---

UNARY = (
    "abs cbrt cosine exponential exponential_minus_one log log_plus_one logistic "
    "negate rsqrt sine sqrt tan tanh"
).split()
BINARY = "add atan2 divide maximum minimum multiply power remainder subtract".split()
#: With f32 and complex numbers too.
COMPLEX = set(UNARY) - {"cbrt"} | {"add", "divide", "multiply", "power", "subtract"}
CHLO = {name: (0.3, 0.9) for name in "acos asin asinh atan atanh cosh".split()} | {
    "acosh": (1.2, 2.5),
    **{
        name: (0.3, 0.9)
        for name in "bessel_i1e digamma erf erf_inv erfc lgamma sinh square tan".split()
    },
}


def _elementwise(op: str, count: int) -> Maker:
    def make(rng: Rng) -> Point:
        shape = shape_of(rng)
        kinds = ["f64", "f32", "complex"] if op in COMPLEX else ["f64", "f32"]
        kind = kinds[rng.integers(len(kinds))]
        return (_of_complex if kind == "complex" else _of_reals)(
            rng, op, count, shape, "f64" if kind == "complex" else kind
        )

    return make


def _in_precision(element: str) -> dict[str, Any]:
    if element == "f64":
        return {}
    return {"tolerance": 2e-4, "step": 1e-2, "rough": 3e-2}


def _of_reals(rng: Rng, op: str, count: int, shape: tuple[int, ...], element: str):
    type_ = type_of(shape, element)
    names = [f"%x{i}" for i in range(count)]
    text = f"""
    func.func @main({", ".join(f"{n}: {type_}" for n in names)}) -> {type_} {{
      %y = stablehlo.{op} {", ".join(names)} : {type_}
      return %y : {type_}
    }}"""
    points = spread(rng, count, *shape).astype(element.replace("f", "float"))
    return Point(text, list(points), tuple(range(count)), **_in_precision(element))


def _of_complex(rng: Rng, op: str, count: int, shape: tuple[int, ...], element: str):
    real, both = type_of(shape, element), type_of(shape, f"complex<{element}>")
    given = [f"%{part}{i}" for i in range(count) for part in ("re", "im")]
    made = "\n".join(
        f"%x{i} = stablehlo.complex %re{i}, %im{i} : {both}" for i in range(count)
    )
    operands = ", ".join(f"%x{i}" for i in range(count))
    if op == "abs":
        apply = f"%r = stablehlo.abs %x0 : ({both}) -> {real}"
        returned, types = "%r", real
    else:
        apply = f"""%y = stablehlo.{op} {operands} : {both}
        %r = stablehlo.real %y : ({both}) -> {real}
        %i = stablehlo.imag %y : ({both}) -> {real}"""
        returned, types = "%r, %i", f"{real}, {real}"
    text = f"""
    func.func @main({", ".join(f"{n}: {real}" for n in given)}) -> ({types}) {{
      {made}
      {apply}
      return {returned} : {types}
    }}"""
    points = spread(rng, 2 * count, *shape)
    return Point(text, list(points), tuple(range(2 * count)), tolerance=1e-8)


def _chlo(op: str) -> Maker:
    def make(rng: Rng) -> Point:
        shape = shape_of(rng)
        type_ = type_of(shape, "f64")
        text = f"""
        func.func @main(%x: {type_}) -> {type_} {{
          %y = chlo.{op} %x : {type_} -> {type_}
          return %y : {type_}
        }}"""
        low, high = CHLO[op]
        points = [spread(rng, *shape, low=low, high=high)]
        # Series of special functions are cut where f64 still sees it.
        return Point(text, points, (0,), tolerance=1e-8, rough=1e-5)

    return make


def _chlo_second(op: str, order: float) -> Maker:
    """Of the second operand alone; the first is an order."""

    def make(rng: Rng) -> Point:
        shape = shape_of(rng)
        type_ = type_of(shape, "f64")
        text = f"""
        func.func @main(%n: {type_}, %x: {type_}) -> {type_} {{
          %y = chlo.{op} %n, %x : {type_}, {type_} -> {type_}
          return %y : {type_}
        }}"""
        points = [np.full(shape, order), spread(rng, *shape)]
        return Point(text, points, (1,), tolerance=1e-8, rough=1e-5)

    return make


def _chlo_broadcast(op: str) -> Maker:
    def make(rng: Rng) -> Point:
        n, m = (int(k) for k in rng.integers(1, 4, 2))
        wide, row = type_of((n, m), "f64"), type_of((m,), "f64")
        text = f"""
        func.func @main(%x: {wide}, %y: {row}) -> {wide} {{
          %z = chlo.broadcast_{op} %x, %y : ({wide}, {row}) -> {wide}
          return %z : {wide}
        }}"""
        points = spread(rng, n + 1, m)
        return Point(text, [points[:n], points[n]], (0, 1))

    return make


def _chlo_select(rng: Rng) -> Point:
    n, m = (int(k) for k in rng.integers(1, 4, 2))
    wide, row = type_of((n, m), "f64"), type_of((m,), "f64")
    text = f"""
    func.func @main(%p: {type_of((n, m), "i1")}, %x: {wide}, %y: {row}) -> {wide} {{
      %z = chlo.broadcast_select %p, %x, %y
        : ({type_of((n, m), "i1")}, {wide}, {row}) -> {wide}
      return %z : {wide}
    }}"""
    points = spread(rng, n + 1, m)
    arguments = [rng.random((n, m)) < 0.5, points[:n], points[n]]
    return Point(text, arguments, (1, 2), fn=jnp.where)


def _chlo_conj(rng: Rng) -> Point:
    shape = shape_of(rng)
    real, both = type_of(shape, "f64"), type_of(shape, "complex<f64>")
    text = f"""
    func.func @main(%a: {real}, %b: {real}) -> ({real}, {real}) {{
      %z = stablehlo.complex %a, %b : {both}
      %c = chlo.conj %z : {both} -> {both}
      %m = stablehlo.multiply %c, %c : {both}
      %r = stablehlo.real %m : ({both}) -> {real}
      %i = stablehlo.imag %m : ({both}) -> {real}
      return %r, %i : {real}, {real}
    }}"""
    return Point(text, list(spread(rng, 2, *shape)), (0, 1))


def _complex_parts(rng: Rng) -> Point:
    shape = shape_of(rng)
    return lowering(
        lambda a, b: (
            lax.real(lax.complex(a, b) * lax.complex(b, a)),
            lax.imag(lax.complex(b * b, a)),
        ),
        *spread(rng, 2, *shape),
    )


def _convert(rng: Rng) -> Point:
    shape = shape_of(rng)
    x, y = spread(rng, 2, *shape)
    narrow = x.astype(np.float32)
    return lowering(
        lambda a, b: a.astype(np.float64) * b,
        *(narrow, y),
        tolerance=2e-6,
        step=1e-2,
        rough=1e-3,
    )


def _reduce_precision(rng: Rng) -> Point:
    """Straight through: both modes round what passes, so they agree to its bits."""
    bits = int(rng.integers(20, 40))
    x = spread(rng, *shape_of(rng))
    return lowering(
        lambda x: lax.reduce_precision(x, 11, bits), x, tolerance=2.0**-17, step=None
    )


def _select(rng: Rng) -> Point:
    shape = shape_of(rng)
    which = rng.random(() if rng.random() < 0.3 else shape) < 0.5
    x, y = spread(rng, 2, *shape)
    return lowering(lambda p, x, y: jnp.where(p, x, y * y), which, x, y)


def _clamp(rng: Rng) -> Point:
    shape = shape_of(rng)
    low, x, high = spread(rng, 3, *shape)
    if rng.random() < 0.5:
        low, high = np.full(shape, 0.41), np.full(shape, 0.79)
    return lowering(lax.clamp, low, x, high)


PROGRAMS: dict[str, Maker] = {
    **{f"stablehlo.{op}": _elementwise(op, 1) for op in UNARY},
    **{f"stablehlo.{op}": _elementwise(op, 2) for op in BINARY},
    **{f"chlo.{op}": _chlo(op) for op in CHLO},
    **{
        f"chlo.broadcast_{op}": _chlo_broadcast(op)
        for op in "add atan2 divide maximum minimum multiply power remainder "
        "subtract".split()
    },
    "chlo.polygamma": _chlo_second("polygamma", 2.0),
    "chlo.zeta": _chlo_second("zeta", 4.0),
    "chlo.broadcast_select": _chlo_select,
    "chlo.conj": _chlo_conj,
    "stablehlo.clamp": _clamp,
    "stablehlo.complex": _complex_parts,
    "stablehlo.convert": _convert,
    "stablehlo.imag": _complex_parts,
    "stablehlo.real": _complex_parts,
    "stablehlo.reduce_precision": _reduce_precision,
    "stablehlo.select": _select,
}
