"""No index in a user's data reads or writes outside of a tensor.

Every op with run-time indices, forward and gradient, compiled by IREE, with
indices of every integer type at their extremes. Each example runs in a process of
its own, so a crash is a failure; what XLA defines is written out in numpy: gathers
and dynamic slices are moved inside, scatters drop what does not fit whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse

ROWS, COLUMNS, COUNT = 5, 3, 4
HEIGHT, WIDTH = 1, 2  # of the windows
TYPES = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
}
X = np.arange(1, 16, dtype=np.float32).reshape(ROWS, COLUMNS)
U = np.arange(100, 108, dtype=np.float32).reshape(COUNT, WIDTH)
G = np.linspace(-1, 1, COUNT * WIDTH, dtype=np.float32).reshape(COUNT, WIDTH)
GX = np.linspace(2, 4, X.size, dtype=np.float32).reshape(X.shape)
OPERAND, UPDATES = f"tensor<{ROWS}x{COLUMNS}xf32>", f"tensor<{COUNT}x{WIDTH}xf32>"
PATCH = f"tensor<{HEIGHT}x{WIDTH}xf32>"


@dataclass(frozen=True)
class Form:
    """An op, and in numpy what it gives and what its cotangents are.

    `values` and `cotangents` take the indices and return the results of `@main` and
    the gradients for its floats; `floats` are the arguments beside the indices.
    """

    text: str
    floats: tuple[np.ndarray, ...]
    seed: np.ndarray
    values: Callable[[np.ndarray], np.ndarray]
    cotangents: Callable[[np.ndarray], list[np.ndarray]] | None


def inside(indices: np.ndarray, height: int = HEIGHT) -> Iterator[tuple[int, int]]:
    """Where each window lies once it is moved inside."""
    for row, column in indices:
        yield (
            min(max(int(row), 0), ROWS - height),
            min(max(int(column), 0), COLUMNS - WIDTH),
        )


def fitting(indices: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(k, row, column) of the windows that lie inside as they are."""
    for k, (row, column) in enumerate(indices):
        if 0 <= int(row) <= ROWS - HEIGHT and 0 <= int(column) <= COLUMNS - WIDTH:
            yield k, int(row), int(column)


def gathered(indices: np.ndarray) -> np.ndarray:
    """The windows of `X`."""
    return np.stack([X[r, c : c + WIDTH] for r, c in inside(indices)])


def gather_back(indices: np.ndarray) -> list[np.ndarray]:
    """`G` added where the windows were read."""
    total = np.zeros_like(X)
    for k, (r, c) in enumerate(inside(indices)):
        total[r, c : c + WIDTH] += G[k]
    return [total]


def added(indices: np.ndarray) -> np.ndarray:
    """`U` added to `X`."""
    total = X.copy()
    for k, r, c in fitting(indices):
        total[r, c : c + WIDTH] += U[k]
    return total


def add_back(indices: np.ndarray) -> list[np.ndarray]:
    """All of `GX`, and its windows; zeros where an update was dropped."""
    updates = np.zeros_like(U)
    for k, r, c in fitting(indices):
        updates[k] = GX[r, c : c + WIDTH]
    return [GX, updates]


def put(indices: np.ndarray) -> np.ndarray:
    """7 in the windows: the order of equal writes does not show."""
    total = X.copy()
    for _, r, c in fitting(indices):
        total[r, c : c + WIDTH] = 7
    return total


def sliced(indices: np.ndarray) -> np.ndarray:
    """The first window."""
    return gathered(indices[:1])


def slice_back(indices: np.ndarray) -> list[np.ndarray]:
    """`G`'s first row where the window was read."""
    total = np.zeros_like(X)
    ((r, c),) = inside(indices[:1])
    total[r, c : c + WIDTH] = G[0]
    return [total]


def updated(indices: np.ndarray) -> np.ndarray:
    """`U`'s first row in the first window, moved inside."""
    total = X.copy()
    ((r, c),) = inside(indices[:1])
    total[r, c : c + WIDTH] = U[0]
    return total


def update_back(indices: np.ndarray) -> list[np.ndarray]:
    """`GX` outside of the window for the operand, inside for the update."""
    ((r, c),) = inside(indices[:1])
    operand = GX.copy()
    operand[r, c : c + WIDTH] = 0
    return [operand, GX[r : r + 1, c : c + WIDTH]]


def rows(indices: np.ndarray) -> np.ndarray:
    """Whole rows, by the first component."""
    return np.stack([X[r] for r, _ in inside(indices)])


def rows_back(indices: np.ndarray) -> list[np.ndarray]:
    """Whole rows of the seed added."""
    total = np.zeros_like(X)
    for k, (r, _) in enumerate(inside(indices)):
        total[r] += GX[k]
    return [total]


WINDOWS = """offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0, 1], index_vector_dim = 1"""
GATHER = f"""
func.func @main(%i: tensor<{COUNT}x2xTYPE>, %x: {OPERAND}) -> {UPDATES} {{
  %0 = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<{WINDOWS}>,
    slice_sizes = array<i64: 1, {WIDTH}>}}>
    : ({OPERAND}, tensor<{COUNT}x2xTYPE>) -> {UPDATES}
  return %0 : {UPDATES}
}}"""
DYNAMIC = f"""
func.func @main(%i: tensor<{COUNT}x2xTYPE>, %x: {OPERAND}) -> {UPDATES} {{
  %s = stablehlo.constant dense<[1, {WIDTH}]> : tensor<2xi64>
  %0 = "stablehlo.dynamic_gather"(%x, %i, %s) <{{
    dimension_numbers = #stablehlo.gather<{WINDOWS}>}}>
    : ({OPERAND}, tensor<{COUNT}x2xTYPE>, tensor<2xi64>) -> {UPDATES}
  return %0 : {UPDATES}
}}"""
SELECT = f"""
func.func @main(%i: tensor<{COUNT}x2xTYPE>, %x: {OPERAND})
    -> tensor<{COUNT}x{COLUMNS}xf32> {{
  %j = stablehlo.slice %i [0:{COUNT}, 0:1] : (tensor<{COUNT}x2xTYPE>)
    -> tensor<{COUNT}x1xTYPE>
  %k = stablehlo.reshape %j : (tensor<{COUNT}x1xTYPE>) -> tensor<{COUNT}xTYPE>
  %0 = "stablehlo.torch_index_select"(%x, %k) <{{dim = 0 : i64, batch_dims = 0 : i64}}>
    : ({OPERAND}, tensor<{COUNT}xTYPE>) -> tensor<{COUNT}x{COLUMNS}xf32>
  return %0 : tensor<{COUNT}x{COLUMNS}xf32>
}}"""


def scatter(returned: str, given: str = "", passed: str = "%u") -> str:
    """A scatter of windows whose body returns `returned`."""
    operand = f", %u: {UPDATES}" if passed == "%u" else ""
    return f"""
func.func @main(%i: tensor<{COUNT}x2xTYPE>, %x: {OPERAND}{operand}) -> {OPERAND} {{
  {given}
  %0 = "stablehlo.scatter"(%x, %i, {passed}) <{{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1],
      index_vector_dim = 1>}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return {returned} : tensor<f32>
  }}) : ({OPERAND}, tensor<{COUNT}x2xTYPE>, {UPDATES}) -> {OPERAND}
  return %0 : {OPERAND}
}}"""


def starts(op: str) -> str:
    """A dynamic slice or update at the first index pair."""
    lines = "".join(
        f"""
  %p{d} = stablehlo.slice %i [0:1, {d}:{d + 1}] : (tensor<{COUNT}x2xTYPE>)
    -> tensor<1x1xTYPE>
  %s{d} = stablehlo.reshape %p{d} : (tensor<1x1xTYPE>) -> tensor<TYPE>"""
        for d in (0, 1)
    )
    update = f", %u: {PATCH}" if "update" in op else ""
    result = OPERAND if update else PATCH
    return f"""
func.func @main(%i: tensor<{COUNT}x2xTYPE>, %x: {OPERAND}{update}) -> {result} {{{lines}
  {op}
  return %0 : {result}
}}"""


SEVENS = f"%c = stablehlo.constant dense<7.0> : {UPDATES}"
SLICE = f"""%0 = stablehlo.dynamic_slice %x, %s0, %s1, sizes = [{HEIGHT}, {WIDTH}]
    : ({OPERAND}, tensor<TYPE>, tensor<TYPE>) -> {PATCH}"""
UPDATE = f"""%0 = stablehlo.dynamic_update_slice %x, %u, %s0, %s1
    : ({OPERAND}, {PATCH}, tensor<TYPE>, tensor<TYPE>) -> {OPERAND}"""
FORMS = {
    "gather": Form(GATHER, (X,), G, gathered, gather_back),
    "dynamic_gather": Form(DYNAMIC, (X,), G, gathered, gather_back),
    "torch_index_select": Form(SELECT, (X,), GX[:COUNT], rows, rows_back),
    "scatter_add": Form(scatter("%s"), (X, U), GX, added, add_back),
    "scatter_set": Form(scatter("%b", SEVENS, "%c"), (X,), GX, put, None),
    "dynamic_slice": Form(starts(SLICE), (X,), G[:1], sliced, slice_back),
    "dynamic_update_slice": Form(starts(UPDATE), (X, U[:1]), GX, updated, update_back),
}


def module_text(form: Form, type_: str, name: str) -> str:
    """`@<name>`: values and gradients (values alone where there is no gradient)."""
    module = parse(form.text.replace("TYPE", type_))
    steps = (
        "pcp-import,pcp-vjp{name=derived},pcp-simplify,pcp-legalize,cse,canonicalize"
    )
    if form.cotangents is None:
        steps = "pcp-import,pcp-simplify,pcp-legalize,cse,canonicalize"
    pipeline(f"builtin.module({steps})").run(module)
    made = list(module.body.operations)[-1].operation
    entry = "derived" if form.cotangents else "main"
    return made.get_asm().replace(f"@{entry}(", f"@{name}(")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Per index type, all forms as one module."""
    return {
        type_: "\n".join(module_text(form, type_, name) for name, form in FORMS.items())
        for type_ in TYPES
    }


def check(iree: Iree, text: str, indices: np.ndarray) -> None:
    """All forms with these indices."""
    calls = {
        name: [indices, *form.floats, *([form.seed] if form.cotangents else [])]
        for name, form in FORMS.items()
    }
    answers = iree.run_all(text, calls)
    for (name, form), answer in zip(FORMS.items(), answers, strict=True):
        assert not isinstance(answer, str), f"{name} {indices.tolist()}: {answer}"
        wanted = [form.values(indices)]
        if form.cotangents is not None:
            wanted += form.cotangents(indices)
        for got, want in zip(answer, wanted, strict=True):
            np.testing.assert_allclose(
                got, want, rtol=1e-5, err_msg=f"{name} {indices.tolist()}"
            )


def extremes(dtype: type) -> list[int]:
    """What has gone wrong before: ends, borders, and words that wrap to a border."""
    info = np.iinfo(dtype)
    seen = [info.min, info.min + 1, info.max, info.max - 1, -1, 0, 1, 2, 4, 5, 6]
    seen += [
        sign * 2**b + d for b in (7, 8, 16, 31, 32) for d in (0, 1) for sign in (1, -1)
    ]
    return sorted({n for n in seen if info.min <= n <= info.max})


def indices_of(dtype: type) -> st.SearchStrategy[np.ndarray]:
    """`[COUNT, 2]` of extremes and of anything else."""
    info = np.iinfo(dtype)
    one = st.sampled_from(extremes(dtype)) | st.integers(int(info.min), int(info.max))
    pairs = st.lists(st.tuples(one, one), min_size=COUNT, max_size=COUNT)
    return pairs.map(lambda rows: np.array(rows, dtype))


def sweep(dtype: type) -> Iterator[np.ndarray]:
    """Each extreme once as a row and once as a column."""
    ends = extremes(dtype)
    for i in range(0, len(ends), COUNT):
        part = (ends[i:] + ends)[:COUNT]
        yield np.array([[n, 0] for n in part], dtype)
        yield np.array([[2, n] for n in part], dtype)


@sampled("type_", ["i8", "i64", "ui64"], ["i8"])
def test_extremes(iree: Iree, texts: dict[str, str], type_: str) -> None:
    for indices in sweep(TYPES[type_]):
        check(iree, texts[type_], indices)


@pytest.mark.slow  # the extremes are above
@settings(
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(indices=indices_of(np.int32))
def test_any_index(iree: Iree, texts: dict[str, str], indices: np.ndarray) -> None:
    check(iree, texts["i32"], indices)


@pytest.mark.slow
@pytest.mark.parametrize("type_", TYPES)
def test_any_index_of_every_type(iree: Iree, texts: dict[str, str], type_: str) -> None:
    @settings(max_examples=150)
    @given(indices=indices_of(TYPES[type_]))
    def hold(indices: np.ndarray) -> None:
        check(iree, texts[type_], indices)

    for indices in sweep(TYPES[type_]):
        check(iree, texts[type_], indices)
    hold()
