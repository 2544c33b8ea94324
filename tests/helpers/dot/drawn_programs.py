"""A random program for each op that has a derivative rule: shapes, attributes, points.

PROGRAMS["stablehlo.pad"](rng) -> Point(text, arguments, ...)
"""

import re

import numpy as np
from helpers.cases import client, composed
from helpers.dot import elementwise, movement, reductions, structure
from helpers.dot.points import Maker, Point, Rng, shape_of, spread, type_of
from helpers.oracles.jax_gradients import Case, is_float, lowered

# --- what brings its own rule ---

RULE = """
  func.func private @f(%x: T) -> T {
    %s = stablehlo.sine %x : T
    return %s : T
  }
  func.func private @f_jvp(%x: T, %t: T) -> (T, T) {
    %s = stablehlo.sine %x : T
    %c = stablehlo.cosine %x : T
    %d = stablehlo.multiply %c, %t : T
    return %s, %d : T, T
  }
  "pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
"""


def _ruled(use: str) -> Maker:
    def make(rng: Rng) -> Point:
        shape = shape_of(rng)
        main = f"""func.func @main(%x: T) -> T {{
          %r = {use}
          return %r : T
        }}"""
        text = f"module {{ {main} {RULE} }}".replace(
            ": T", ": " + type_of(shape, "f64")
        )
        for form in ("(T, T)", "(T)", "-> T", ", T"):
            text = text.replace(form, form.replace("T", type_of(shape, "f64")))
        return Point(text, [spread(rng, *shape)], (0,))

    return make


# --- what stands for other ops, with the shapes of its case ---


def _of_case(case: Case) -> Maker:
    """Other numbers in the case's program, in f64."""

    def make(rng: Rng) -> Point:
        arguments = [
            x * rng.uniform(0.9, 1.1, np.shape(x)) if is_float(x) else np.asarray(x)
            for x in case.args
        ]
        floats = tuple(i for i, x in enumerate(case.args) if is_float(x))
        wrt = floats if case.wrt is None else case.wrt
        text = re.sub(r"([<x])f32>", r"\1f64>", lowered(case))
        # Attributes such as an epsilon stay f32.
        return Point(text, arguments, wrt, tolerance=1e-6, rough=1e-5, fn=case.fn)

    return make


#: op: the case that has it.
CASE_OF = {
    **{
        f"stablehlo.{name}": name
        for name in "batch_norm_training batch_norm_inference batch_norm_grad map "
        "tuple broadcast dot einsum unary_einsum torch_index_select dynamic_reshape "
        "dynamic_broadcast_in_dim dynamic_pad real_dynamic_slice dynamic_gather "
        "dynamic_conv".split()
    },
    "stablehlo.get_tuple_element": "tuple",
    **{
        f"chlo.broadcast_{name}": f"broadcast_{name}"
        for name in "complex polygamma zeta".split()
    },
    "chlo.ragged_dot": "ragged_rows_written_out",
}


def _written_out() -> dict[str, Maker]:
    """Each op's first case among those of the ops that stand for others."""
    named = {case.name: case for case in (*composed.CASES, *client.CASES)}
    return {op: _of_case(named[name]) for op, name in CASE_OF.items()}


PROGRAMS: dict[str, Maker] = {
    **_written_out(),
    **elementwise.PROGRAMS,
    **movement.PROGRAMS,
    **reductions.PROGRAMS,
    **structure.PROGRAMS,
    "func.call": _ruled("func.call @f(%x) : (T) -> T"),
    "stablehlo.composite": _ruled(
        'stablehlo.composite "mine.f" %x {decomposition = @f} : (T) -> T'
    ),
}
