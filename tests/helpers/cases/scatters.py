"""Derivative cases of scatters: bodies, duplicates, dimensions, several operands."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.cases.composed import main
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

X, V = array(4, 5), array(6)
TWICE = np.array([3, 0, 3, 9, 3, 1], np.int32)
PAIRS = np.array([[3, 1], [0, 4], [2, 2], [3, 1]], np.int32)


def text_of(fn, *args) -> str:
    """The StableHLO of a function that is not its own oracle."""
    return jax.jit(fn, keep_unused=True).lower(*args).as_text()


# --- products with several factors for one place: jax has no derivative ---


def _multiplied(x, i, u):
    return x.at[i].multiply(u, mode="drop")


def _one_by_one(indices):
    """The same product, a factor at a time; what lies outside is dropped."""

    def fn(x, i, u):
        for k, place in enumerate(indices):
            if 0 <= place < x.shape[0]:
                x = x.at[place].set(x[place] * u[k])
        return x

    return fn


def _product(name: str, x, u) -> Case:
    text = text_of(_multiplied, x, TWICE, u)
    return Case(name, _one_by_one(TWICE), (x, TWICE, u), text=text)


NO_ZERO, TWO_ZEROS = array(6, seed=4), np.array([0, 2, 0, 0, 3, 0], np.float32)
PRODUCTS = [
    _product("scatter_multiply_duplicates", V, NO_ZERO),
    _product("scatter_multiply_rows", X, array(6, 5)),
    _product("scatter_multiply_zeros", V, TWO_ZEROS),
    _product("scatter_multiply_onto_zero", V * np.float32(0), TWO_ZEROS),
]

# --- any body, one update for each place ---

#: Where two rows and three columns fit.
FITTING = PAIRS % 3
UNIQUE = np.array([[2], [0], [7]], np.int32)
PLAIN = """scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"""
S, T, I3, U3 = "tensor<f32>", "tensor<6xf32>", "tensor<3x1xi32>", "tensor<3xf32>"


def _text(body: str, operands: int, *, unique: bool) -> str:
    xs = [f"%x{i}" for i in range(operands)]
    us = [f"%u{i}" for i in range(operands)]
    arguments = [*(f"{x}: {T}" for x in xs), f"%i: {I3}", *(f"{u}: {U3}" for u in us)]
    scalars = ", ".join(
        f"{n}: {S}" for n in [f"%a{i}" for i in range(operands)]
    ) + "".join(f", %b{i}: {S}" for i in range(operands))
    types = [*[T] * operands, I3, *[U3] * operands]
    return main(
        ", ".join(arguments),
        f"""%y:{operands} = "stablehlo.scatter"({", ".join([*xs, "%i", *us])}) ({{
  ^bb0({scalars}):
    {body}
  }}) {{{PLAIN}, unique_indices = {str(unique).lower()}}}
    : ({", ".join(types)}) -> ({", ".join([T] * operands)})""",
        *((f"%y#{i}", T) for i in range(operands)),
    )


ATAN2 = f"%c = stablehlo.atan2 %a0, %b0 : {S}\n    stablehlo.return %c : {S}"
APART = f"""%c = stablehlo.add %a0, %b0 : {S}
    %d = stablehlo.maximum %a1, %b1 : {S}
    stablehlo.return %c, %d : {S}, {S}"""
MIXED = f"""%c = stablehlo.multiply %a0, %b1 : {S}
    %d = stablehlo.add %a1, %c : {S}
    stablehlo.return %c, %d : {S}, {S}"""


def _atan2(x, i, u):
    inside = i[:2, 0]  # the third lies outside
    return x.at[inside].set(jnp.arctan2(x[inside], u[:2]))


def _apart(x, y, i, u, v):
    return x.at[i[:, 0]].add(u, mode="drop"), y.at[i[:, 0]].max(v, mode="drop")


def _mixed(x, y, i, u, v):
    inside = i[:2, 0]
    c = x[inside] * v[:2]
    return x.at[inside].set(c), y.at[inside].add(c)


PAIR = (V, V + 1, UNIQUE, array(3), array(3, seed=1))
BODIES = [
    Case(
        "scatter_any_body",
        _atan2,
        (V, UNIQUE, array(3)),
        text=_text(ATAN2, 1, unique=True),
    ),
    Case("scatter_variadic", _apart, PAIR, text=_text(APART, 2, unique=False)),
    Case(
        "scatter_variadic_one_live",
        lambda *args: _apart(*args)[1],
        PAIR,
        text=_text(APART, 2, unique=False)
        .replace(f"({T}, {T}) {{\n", f"{T} {{\n", 1)
        .replace(f"return %y#0, %y#1 : {T}, {T}", f"return %y#1 : {T}"),
    ),
    Case("scatter_variadic_mixed", _mixed, PAIR, text=_text(MIXED, 2, unique=True)),
]

# --- dimension numbers ---


def _scatter(kind, window, inserted, to_operand, batching=((), ()), **options):
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=window,
        inserted_window_dims=inserted,
        scatter_dims_to_operand_dims=to_operand,
        operand_batching_dims=batching[0],
        scatter_indices_batching_dims=batching[1],
    )
    run = getattr(lax, kind)
    return lambda x, i, u: run(x, i, u, numbers, mode="drop", **options)


CUBE = array(3, 4, 5)
BATCH = ((0,), (0,))
COLUMNS = integers(3, 2, 1, high=4)
NUMBERS = [
    Case(
        f"{kind}_{name}",
        _scatter(kind, *numbers),
        arguments,
    )
    for kind in ("scatter_add", "scatter", "scatter_max")
    for name, numbers, arguments in (
        ("elements", ((), (0, 1), (0, 1)), (X, PAIRS, array(4))),
        ("swapped", ((), (0, 1), (1, 0)), (array(5, 4), PAIRS, array(4))),
        ("partial", ((1, 2), (), (0, 1)), (X, FITTING, array(4, 2, 3))),
        ("inner", ((0,), (1,), (1,)), (X, PAIRS[:, :1], array(4, 4))),
        ("window_first", ((0, 1), (1,), (1,)), (CUBE, PAIRS[:, :1], array(3, 5, 4))),
        ("batched", ((2,), (1,), (1,), BATCH), (CUBE, COLUMNS, array(3, 2, 5))),
    )
]
CASES = [*PRODUCTS, *BODIES, *NUMBERS]
