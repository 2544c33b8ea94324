"""Calls of the CUDA kernels: what they are told, and the PTX that they name.

No GPU is needed: `_kernel` reads and writes as native/product.cu does, by the numbers
of a call alone. `benchmarks/torture.py --elsewhere` compares the kernels themselves
with JAX on a card.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from pcp.compiler.targets import TARGETS
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels import objects
from pcp.passes.kernels.cuda_products import ProductCall, product_call
from pcp.tools.profile import ptx

#: Numbers, result types: batch, rows, columns, depth.
SHAPES = {
    "large": (0, 1536, 1664, 40),
    "tails": (0, 100, 53, 77),
    "deep": (0, 64, 96, 2050),
    "batch": (3, 77, 65, 100),
}


def _call(
    form: str, shape: tuple[int, int, int, int], element: str = "f32", more: str = ""
) -> ProductCall | None:
    batch, rows, columns, depth = shape
    front = f"{batch}x" if batch else ""
    left = (depth, rows) if form[0] == "T" else (rows, depth)
    right = (columns, depth) if form[1] == "T" else (depth, columns)
    x, y = (f"tensor<{front}{a}x{b}x{element}>" for a, b in (left, right))
    z = f"tensor<{front}{rows}x{columns}xf32>"
    first = 1 if batch else 0
    contracted = [first + (form[0] == "N")], [first + (form[1] == "T")]
    batching = "batching_dims = [0] x [0], " if batch else ""
    module = parse(f"""
func.func @main(%x: {x}, %y: {y}) -> {z} {{
  %0 = stablehlo.dot_general %x, %y, {batching}contracting_dims =
    {contracted[0]} x {contracted[1]}{more} : ({x}, {y}) -> {z}
  return %0 : {z}
}}""")
    (dot,) = (op for op in operations(module) if op.name == "stablehlo.dot_general")
    return product_call(dot)


def _kernel(found: ProductCall, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows, columns, each, lefts, rights, next_a, next_b, whole = found.call.numbers
    form = found.call.function[-2:]
    parts = []
    for z in range(found.call.grid[2]):
        depth = min(each, whole - z * each) if whole else each
        assert depth > 0
        m, n, k = np.ogrid[:rows, :columns, :depth]
        at = z * next_a + (k * lefts + m if form[0] == "T" else m * lefts + k)
        bt = z * next_b + (n * rights + k if form[1] == "T" else k * rights + n)
        parts.append((a.ravel()[at] * b.ravel()[bt]).sum(-1))
    return np.stack(parts)


@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
@pytest.mark.parametrize("name", ["tails", "deep", "batch"])
def test_a_call_names_every_element_once(form: str, name: str) -> None:
    shape = batch, rows, columns, depth = SHAPES[name]
    found = _call(form, shape)
    assert found is not None
    tile = int(found.call.function.split("_")[3])
    assert found.call.grid[0] * tile >= columns > (found.call.grid[0] - 1) * tile
    assert found.call.grid[1] * tile >= rows > (found.call.grid[1] - 1) * tile
    random = np.random.default_rng(0)
    count = max(1, batch)
    a, b = (
        random.normal(size=(count, rows, depth)),
        random.normal(size=(count, depth, columns)),
    )
    left = a.swapaxes(1, 2) if form[0] == "T" else a
    right = b.swapaxes(1, 2) if form[1] == "T" else b
    got = _kernel(found, np.ascontiguousarray(left), np.ascontiguousarray(right))
    if found.parts > 1:
        assert found.shape == (found.parts, rows, columns)
        got = got.sum(0, keepdims=True)
    np.testing.assert_allclose(got, a @ b, atol=1e-9)
    assert (found.parts > 1) == (name == "deep")


def test_large_products_have_large_tiles() -> None:
    found = _call("NN", SHAPES["large"])
    assert found is not None
    assert found.call.function == "pcp_product_f32_128_NN"
    assert found.call.grid == (13, 12, 1)


_ONCE, _THRICE = (
    ", algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, "
    "accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
    f"num_primitive_operations = {n}, allow_imprecise_accumulation = false>"
    for n in (1, 3)
)


@pytest.mark.parametrize(
    ("element", "more", "kind"),
    [
        ("f32", "", "f32"),
        ("bf16", "", "bf16"),
        ("f16", "", "f16"),
        ("f32", _ONCE, "tf32"),
        ("f32", _THRICE, None),
        ("f64", "", None),
    ],
)
def test_tf32_is_for_who_asks_for_it(element: str, more: str, kind: str | None) -> None:
    found = _call("NN", SHAPES["tails"], element, more)
    assert (found and found.call.function) == (kind and f"pcp_product_{kind}_64_NN")


@pytest.mark.parametrize(
    "shape", [(0, 1, 4096, 4096), (0, 64, 64, 8), (0, 32, 32, 32), (70000, 16, 16, 16)]
)
def test_what_no_kernel_takes(shape: tuple[int, int, int, int]) -> None:
    assert _call("NN", shape) is None


def test_gpus_with_matrix_instructions_have_the_pass() -> None:
    named = {n for n, row in TARGETS.items() if "pcp-kernels{set=sm_80}" in row.passes}
    assert {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120a"} <= named
    assert not {"sm_70", "sm_75", "gfx942", "cpu"} & named


def test_every_kernel_is_of_matrix_instructions_and_copies() -> None:
    assert len(objects.ptx()) == 24
    for name, text in objects.ptx().items():
        assert text.count(".visible .entry") == 1
        assert f".visible .entry {name}(" in text
        assert "mma.sync" in text
        assert "cp.async" in text


def _assembled(name: str, chip: str, folder: Path) -> str:
    source = folder / "kernel.ptx"
    source.write_text(objects.ptx()[name])
    command = [str(ptx.assembler()), "-v", f"-arch={chip}", str(source)]
    done = subprocess.run(
        [*command, "-o", "/dev/null"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


needs_ptxas = pytest.mark.skipif(ptx.assembler() is None, reason="ptxas is missing")


@needs_ptxas
def test_a_kernel_assembles(tmp_path: Path) -> None:
    said = _assembled("pcp_product_bf16_64_NN", "sm_90a", tmp_path)
    assert " 0 bytes spill stores" in said


@needs_ptxas
@pytest.mark.slow  # 24 kernels, half a second each, for three chips
@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_120a"])
def test_all_kernels_assemble(chip: str, tmp_path: Path) -> None:
    for name in objects.ptx():
        assert " 0 bytes spill stores" in _assembled(name, chip, tmp_path), name
