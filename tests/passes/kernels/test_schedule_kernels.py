"""pcp-schedule-kernels: the same products with tiles; what has none stays."""

import numpy as np
import pytest
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree

from pcp.dialect import hlo
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels.contractions import Contraction, contraction_of
from pcp.passes.kernels.schedule_kernels import ScheduleKernels
from pcp.passes.kernels.tiles import (
    PANEL_PART,
    PART,
    REGISTER_TILES,
    schedule_for,
)

#: Left, right, numbers: every form, batched and not, odd depths, several free dims.
PRODUCTS: dict[str, tuple[str, str, str]] = {
    "nn": ("40x37", "37x96", "contracting_dims = [1] x [0]"),
    "nt": ("512x20", "32x20", "contracting_dims = [1] x [1]"),
    "tn": ("64x24", "64x32", "contracting_dims = [0] x [0]"),
    "rows of four": ("100x16", "16x64", "contracting_dims = [1] x [0]"),
    "narrow": ("2040x12", "12x48", "contracting_dims = [1] x [0]"),
    "far rows": ("16x8", "8x1024", "contracting_dims = [1] x [0]"),
    "batched": (
        "6x32x16",
        "6x16x32",
        "batching_dims = [0] x [0], contracting_dims = [2] x [1]",
    ),
    "batched nt": (
        "3x48x20",
        "3x64x20",
        "batching_dims = [0] x [0], contracting_dims = [2] x [2]",
    ),
    "batched tn": (
        "2x3x16x32",
        "2x3x16x32",
        "batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2]",
    ),
    "panels": ("256x20", "20x48", "contracting_dims = [1] x [0]"),
    "panels nt": ("516x37", "32x37", "contracting_dims = [1] x [1]"),
    "panels tn": ("40x256", "40x16", "contracting_dims = [0] x [0]"),
    "panels, batched": (
        "2x24x256",
        "2x24x96",
        "batching_dims = [0] x [0], contracting_dims = [1] x [1]",
    ),
    "panels, batched nt": (
        "2x256x12",
        "2x32x12",
        "batching_dims = [0] x [0], contracting_dims = [2] x [2]",
    ),
    "free dims": ("4x10x16", "16x3x32", "contracting_dims = [2] x [0]"),
    "two depths": ("24x4x5", "4x5x32", "contracting_dims = [1, 2] x [0, 1]"),
}


def _shape(text: str) -> list[int]:
    return list(map(int, text.split("x")))


def _einsum(left: np.ndarray, right: np.ndarray, numbers: str) -> np.ndarray:
    """numpy's, in f64, from the numbers as StableHLO writes them."""
    pairs = {
        part.split(" = ")[0].strip(): [
            [int(n) for n in side.strip(" []").split(",") if n]
            for side in part.split(" = ")[1].split(" x ")
        ]
        for part in numbers.replace("], c", "];c").split(";")
    }
    names = iter("abcdefghijk")
    first = [next(names) for _ in range(left.ndim)]
    second = [next(names) for _ in range(right.ndim)]
    for a, b in pairs.values():
        for i, j in zip(a, b, strict=True):
            second[j] = first[i]
    batch = [first[d] for d in pairs.get("batching_dims", [[], []])[0]]
    done = {*batch, *(first[d] for d in pairs["contracting_dims"][0])}
    result = [*batch, *(n for n in [*first, *second] if n not in done)]
    spec = f"{''.join(first)},{''.join(second)}->{''.join(result)}"
    return np.einsum(spec, left.astype(np.float64), right.astype(np.float64))


def _program() -> tuple[str, dict[str, list[np.ndarray]], dict[str, np.ndarray]]:
    """A module with a function a product, arguments, and the results."""
    random = np.random.default_rng(0)
    texts, calls, wanted = [], {}, {}
    for number, (left, right, numbers) in enumerate(PRODUCTS.values()):
        x, y = (random.normal(size=_shape(s)).astype(np.float32) for s in (left, right))
        want = _einsum(x, y, numbers)
        a, b = f"tensor<{left}xf32>", f"tensor<{right}xf32>"
        c = f"tensor<{'x'.join(map(str, want.shape))}xf32>"
        name = f"f{number}"
        texts.append(
            f"func.func @{name}(%x: {a}, %y: {b}) -> {c} {{\n"
            f"  %0 = stablehlo.dot_general %x, %y, {numbers} : ({a}, {b}) -> {c}\n"
            f"  return %0 : {c}\n}}\n"
        )
        calls[name], wanted[name] = [x, y], want
    return "".join(texts), calls, wanted


@sampled("bits", [128, 256, 512], [256])
def test_same_products(iree: Iree, bits: int) -> None:
    text, calls, wanted = _program()
    module = parse(text)
    module.context.allow_unregistered_dialects = True  # IREE's own
    ScheduleKernels(vector=bits).run(module)
    assert module.operation.verify()
    left = [op for op in operations(module) if op.name == "stablehlo.dot_general"]
    assert not left or bits < 512
    for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
        assert not isinstance(got, str), got
        np.testing.assert_allclose(got[0], wanted[name], rtol=1e-5, atol=1e-5)


def test_a_weight_is_turned_once_and_read_by_all() -> None:
    a, w, c = "tensor<512x64xf32>", "tensor<96x64xf32>", "tensor<512x96xf32>"
    module = parse(f"""
func.func @main(%x: {a}, %y: {a}, %w: {w}) -> ({c}, {c}) {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({a}, {w}) -> {c}
  %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : ({a}, {w}) -> {c}
  return %0, %1 : {c}, {c}
}}""")
    ScheduleKernels(vector=512).run(module)
    names = [op.name for op in operations(module)]
    assert names.count("linalg.transpose") == 1
    assert names.count("flow.dispatch.region") == 1
    assert names.count("linalg.matmul") == 2


def test_panels_are_made_once_and_read_by_all() -> None:
    a, w, c = "tensor<512x64xf32>", "tensor<96x64xf32>", "tensor<512x96xf32>"
    module = parse(f"""
func.func @main(%x: {a}, %y: {a}, %w: {w}) -> ({c}, {c}, {w}) {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({a}, {w}) -> {c}
  %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : ({a}, {w}) -> {c}
  return %0, %1, %w : {c}, {c}, {w}
}}""")
    ScheduleKernels(vector=256).run(module)
    names = [op.name for op in operations(module)]
    assert names.count("linalg.transpose") == 1
    assert names.count("linalg.generic") == 2


KEPT = {
    "odd columns": ("64x32", "32x65", "contracting_dims = [1] x [0]", "64x65", "f32"),
    "one row": ("1x32", "32x64", "contracting_dims = [1] x [0]", "1x64", "f32"),
    "few rows, transposed": (
        "64x32",
        "64x32",
        "contracting_dims = [1] x [1]",
        "64x64",
        "f32",
    ),
    "doubles": ("64x32", "32x64", "contracting_dims = [1] x [0]", "64x64", "f64"),
    "nothing": ("0x32", "32x64", "contracting_dims = [1] x [0]", "0x64", "f32"),
    "inner batch": (
        "32x4x16",
        "32x4x16",
        "batching_dims = [1] x [1], contracting_dims = [2] x [2]",
        "4x32x32",
        "f32",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept(case: str) -> None:
    left, right, numbers, result, element = KEPT[case]
    a, b, c = (f"tensor<{s}x{element}>" for s in (left, right, result))
    module = parse(f"""
func.func @main(%x: {a}, %y: {b}) -> {c} {{
  %0 = stablehlo.dot_general %x, %y, {numbers} : ({a}, {b}) -> {c}
  return %0 : {c}
}}""")
    before = str(module)
    ScheduleKernels(vector=512).run(module)
    assert str(module) == before


def test_tiles_divide_what_they_tile() -> None:
    random = np.random.default_rng(1)
    for _ in range(500):
        rows, depth, columns = (int(n) for n in random.integers(1, 400, 3))
        batch = int(random.integers(3))
        form = str(random.choice(["NN", "TN", "NT"]))
        shape = Contraction(form, batch, rows, depth, columns)
        for bits in REGISTER_TILES:
            if (schedule := schedule_for(shape, bits)) is None:
                continue
            tiles = schedule.tiles
            assert tiles.part_rows % tiles.rows == rows % tiles.part_rows == 0
            assert (
                tiles.part_columns % tiles.columns == columns % tiles.part_columns == 0
            )
            assert depth % tiles.depth == 0
            most = PANEL_PART if schedule.panels else (PART, PART)
            assert tiles.part_rows <= most[0]
            assert tiles.part_columns <= most[1]


def test_forms() -> None:
    text, _, wanted = _program()
    module = parse(text)
    dots = [op for op in operations(module) if op.name == "stablehlo.dot_general"]
    for dot, want in zip(dots, wanted.values(), strict=True):
        shape = contraction_of(dot)
        assert shape is not None
        assert np.prod(shape.result) == want.size
        for given, size in (
            (shape.left, dot.operands[0]),
            (shape.right, dot.operands[1]),
        ):
            assert np.prod(given) == hlo.size(size)
