"""pcp-kernels: numpy's numbers with every set of instructions; what stays."""

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import find
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels import objects, processors
from pcp.passes.kernels.own_kernels import OwnKernels
from pcp.runtime.program.executor import Program

HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())

#: Rows, columns, depth: one row to several blocks of them, tails everywhere.
SHAPES = (
    (1, 96, 512),
    (1, 1003, 37),
    (2, 130, 200),
    (3, 97, 331),
    (5, 200, 111),
    (8, 131, 128),
    (9, 128, 130),
    (37, 129, 257),
    (200, 224, 96),
)
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.float32}


def _program(random: np.random.Generator) -> tuple[str, dict, dict]:
    """A function for each shape and type of weights, arguments, results."""
    texts, calls, wanted = [], {}, {}
    for number, (rows, columns, depth) in enumerate(SHAPES):
        for kind, held in TYPES.items():
            x = random.normal(size=(rows, depth)).astype(np.float32)
            w = random.normal(size=(columns, depth)).astype(held)
            if kind == "f16":
                w[0, :3] = 6e-8, -3e-6, 65504  # two that are not normalized, the most
                bits = random.integers(1, 1024, w[1].shape, np.uint16)
                w[1] = bits.view(np.float16)  # a row of nothing else
            if kind == "bf16":
                w = (w.view(np.uint32) & 0xFFFF0000).view(np.float32)
            name = f"{kind}_{number}"
            argument = w.dtype.name.replace("float", "f")
            texts.append(_function(name, (rows, columns, depth), kind, argument))
            calls[name] = [x, w]
            wanted[name] = x.astype(np.float64) @ w.astype(np.float64).T
    return "".join(texts), calls, wanted


def _function(name: str, shape: tuple[int, int, int], kind: str, argument: str) -> str:
    """The weights come as `argument`, and are made `kind` before the product."""
    rows, columns, depth = shape
    x, y = f"tensor<{rows}x{depth}xf32>", f"tensor<{rows}x{columns}xf32>"
    given, held, w = (f"tensor<{columns}x{depth}x{t}>" for t in (argument, kind, "f32"))
    return f"""
func.func @{name}(%x: {x}, %given: {given}) -> {y} {{
  %held = stablehlo.convert %given : ({given}) -> {held}
  %w = stablehlo.convert %held : ({held}) -> {w}
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({x}, {w}) -> {y}
  return %0 : {y}
}}"""


OWN = [s for s in HERE if objects.best("product", s) == s]


@pytest.mark.parametrize(
    "instructions",
    # Slow: the kernel for most of what this processor has shows how it is called.
    [*(pytest.param(s, marks=pytest.mark.slow) for s in OWN[1:]), *OWN[:1]],
)
def test_same_products(iree: Iree, instructions: str) -> None:
    text, calls, wanted = _program(np.random.default_rng(0))
    module = parse(text)
    OwnKernels(set=instructions).run(module)
    names = [op.name for op in operations(module)]
    assert "stablehlo.dot_general" not in names
    assert names.count("flow.dispatch") == len(calls)
    for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
        assert not isinstance(got, str), got
        x, w = (a.astype(np.float64) for a in calls[name])
        magnitude = np.abs(x) @ np.abs(w).T
        bound = SHAPES[int(name.split("_")[1])][2] * 2.0**-24 * magnitude
        assert np.all(np.abs(got[0] - wanted[name]) <= bound), name


CHAIN = """
func.func @main(%x: tensor<3x128xf32>, %v: tensor<160x128xf32>, %w: tensor<128x160xf32>,
                %b: tensor<160xf32>) -> (tensor<3x160xf32>, tensor<128xf32>) {
  %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [1]
    : (tensor<3x128xf32>, tensor<160x128xf32>) -> tensor<3x160xf32>
  %1 = stablehlo.tanh %0 : tensor<3x160xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1]
    : (tensor<3x160xf32>, tensor<128x160xf32>) -> tensor<3x128xf32>
  %3 = stablehlo.tanh %2 : tensor<3x128xf32>
  %4 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [1]
    : (tensor<3x128xf32>, tensor<160x128xf32>) -> tensor<3x160xf32>
  %5 = stablehlo.dot_general %w, %b, contracting_dims = [1] x [0]
    : (tensor<128x160xf32>, tensor<160xf32>) -> tensor<128xf32>
  return %4, %5 : tensor<3x160xf32>, tensor<128xf32>
}
"""


def test_a_program_for_arm_has_the_object_for_arm() -> None:
    options = CompileOptions(targets=("aarch64",), mode="forward")
    assert b"pcp_product_f32" in driver.compile(parse(CHAIN), options).module("aarch64")


@pytest.mark.slow  # two programs
@pytest.mark.parametrize("target", ["cpu", "cpu:host"])
def test_a_program_of_several_on_both_devices(target: str) -> None:
    """What they hand on lies in one buffer, each at an offset."""
    bundles = {
        kernels: driver.compile(
            parse(CHAIN),
            CompileOptions(targets=(target,), mode="forward", kernels=kernels),
        )
        for kernels in ("own", "none")
    }
    random = np.random.default_rng(1)
    shapes = (3, 128), (160, 128), (128, 160), (160,)
    x, v, w, b = (random.normal(size=s).astype(np.float32) / 8 for s in shapes)
    wanted = np.tanh(np.tanh(x @ v.T) @ w.T) @ v.T, w @ b
    for bundle in bundles.values():
        for device in ("local-sync", "local-task"):
            program = Program.load(bundle, device)
            for got, want in zip(program["main"](x, v, w, b), wanted, strict=True):
                np.testing.assert_allclose(got, want, atol=1e-5)
            program.close()
    own, none = (bundle.module(target) for bundle in bundles.values())
    assert b"pcp_product_f32" in own
    assert b"pcp_product_f32" not in none


KEPT = {
    "other form": ("4x128", "128x256", "[1] x [0]", "4x256", "f32"),
    "few weights": ("4x32", "64x32", "[1] x [1]", "4x64", "f32"),
    "many rows": ("512x128", "256x128", "[1] x [1]", "512x256", "f32"),
    "doubles": ("4x128", "256x128", "[1] x [1]", "4x256", "f64"),
    "halves": ("4x128", "256x128", "[1] x [1]", "4x256", "f16"),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept(case: str) -> None:
    left, right, numbers, result, element = KEPT[case]
    a, b, c = (f"tensor<{s}x{element}>" for s in (left, right, result))
    module = parse(f"""
func.func @main(%x: {a}, %y: {b}) -> {c} {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = {numbers} : ({a}, {b}) -> {c}
  return %0 : {c}
}}""")
    before = str(module)
    OwnKernels(set="x86-64-v4").run(module)
    assert str(module) == before


GROUPED = """
func.func @main(%x: tensor<3x2x8x4xi8>, %w: tensor<8x2x8x16x4xi8>,
    %xs: tensor<3x{rows}xf32>, %ws: tensor<8x{columns}x16xf32>) -> tensor<3x8x16xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, batching_dims = [1] x [1],
    contracting_dims = [2, 3] x [2, 4]
    : (tensor<3x2x8x4xi8>, tensor<8x2x8x16x4xi8>) -> tensor<2x3x8x16xi32>
  %1 = stablehlo.convert %0 : (tensor<2x3x8x16xi32>) -> tensor<2x3x8x16xf32>
  %2 = stablehlo.broadcast_in_dim %ws, dims = [2, 0, 3]
    : (tensor<8x{columns}x16xf32>) -> tensor<2x3x8x16xf32>
  %3 = stablehlo.broadcast_in_dim %xs, dims = [1, 0]
    : (tensor<3x{rows}xf32>) -> tensor<2x3x8x16xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<2x3x8x16xf32>
  %5 = stablehlo.multiply %1, %4 : tensor<2x3x8x16xf32>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<2x3x8x16xf32>, tensor<f32>) -> tensor<3x8x16xf32>
  return %6 : tensor<3x8x16xf32>
}}"""


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (1, 2), (2, 1)])
def test_a_scale_that_is_repeated_is_kept(rows: int, columns: int) -> None:
    """The kernel reads one for each group: behind a single one is nothing."""
    module = parse(GROUPED.format(rows=rows, columns=columns))
    OwnKernels(set="x86-64-v4").run(module)
    assert ("pcp_grouped_int8" in str(module)) == (rows == columns == 2)


def test_an_unknown_set_of_instructions() -> None:
    with pytest.raises(PassError, match=r"x86-64-v4-vnni, aarch64, sm_80\)"):
        OwnKernels(set="x86-64-v9").run(parse("func.func @main() { return }"))


# --- which object a program gets ---


@pytest.mark.parametrize(
    ("cpu", "instructions"),
    [
        ("x86-64-v3", "x86-64-v3"),
        ("haswell", "x86-64-v3"),
        ("skylake-avx512", "x86-64-v4"),
        ("znver4", "x86-64-v4-vnni"),
        ("nothing", ""),
    ],
)
def test_the_set_of_a_target_is_that_of_its_processor(
    cpu: str, instructions: str
) -> None:
    found = [p for p in find(f"cpu:{cpu}").passes if p.startswith("pcp-kernels")]
    assert found == [f"pcp-kernels{{set={instructions}}}"] * bool(instructions)


def test_arm_has_its_own_wherever_it_is_compiled() -> None:
    for name in ("aarch64", "aarch64:neoverse-v2"):
        assert "pcp-kernels{set=aarch64}" in find(name).passes


V3 = "ssse3 sse4_1 sse4_2 popcnt avx avx2 bmi1 bmi2 f16c fma movbe abm"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("sse2", "x86-64"),
        (V3, "x86-64-v3"),
        (V3.replace("f16c", ""), "x86-64"),
        (V4, "x86-64-v4"),
        (f"{V4} avx512_vnni", "x86-64-v4-vnni"),
        (f"{V3} avx512_vnni", "x86-64-v3"),
    ],
)
def test_a_host_as_linux_describes_it(
    tmp_path: Path, flags: str, instructions: str
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags\t\t: {flags}\n")
    assert processors._host_set(info) == instructions


# --- the objects themselves ---

NATIVE = Path(objects.__file__).parent / "native"


def test_objects_are_made_of_these_sources() -> None:
    files = [f for end in ("c", "h", "cu") for f in sorted(NATIVE.glob(f"*.{end}"))]
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
    made_of = (NATIVE.parent / "objects" / "sources.sha256").read_text().strip()
    assert digest == made_of, "run `make kernels`"


def test_every_source_has_an_object_for_every_format() -> None:
    for source in NATIVE.glob("*.c"):
        for instructions in ("x86-64", "aarch64"):
            assert objects.best(source.stem, instructions) == instructions


MAIN = """
#include <stdio.h>
#include <stdlib.h>
void pcp_product_f32(const float *, size_t, const float *, size_t, float *, size_t,
                     size_t, size_t, size_t, size_t, size_t);
int main(int argc, char **argv) {
  size_t m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3 % argc]);
  float *x = malloc(4 * m * k), *w = malloc(4 * n * k), *y = malloc(4 * m * n);
  if (fread(x, 4, m * k, stdin) + fread(w, 4, n * k, stdin) != m * k + n * k) return 1;
  for (size_t part = 0; part * 96 < n; part++)
    pcp_product_f32(x, 0, w, 0, y, 0, part, 96, m, n, k);
  return fwrite(y, 4, m * n, stdout) != m * n;
}
"""


@pytest.mark.skipif(
    not all(map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")))
    or platform.machine() != "x86_64",
    reason="needs gcc-aarch64-linux-gnu and qemu-user-static",
)
def test_the_object_for_arm_in_an_emulator(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    made = NATIVE.parent / "objects" / "product-aarch64.o"
    build = ["aarch64-linux-gnu-gcc", "-static", "-O1", "main.c", str(made)]
    subprocess.run([*build, "-o", "main"], cwd=tmp_path, check=True)
    random = np.random.default_rng(2)
    for rows, columns, depth in SHAPES:
        x = random.normal(size=(rows, depth)).astype(np.float32)
        w = random.normal(size=(columns, depth)).astype(np.float32)
        sizes = map(str, (rows, columns, depth))
        done = subprocess.run(
            ["qemu-aarch64-static", "./main", *sizes],
            cwd=tmp_path,
            input=x.tobytes() + w.tobytes(),
            stdout=subprocess.PIPE,
            check=True,
        )
        got = np.frombuffer(done.stdout, np.float32).reshape(rows, columns)
        np.testing.assert_allclose(got, x @ w.T, atol=1e-4)
