"""A `pcp.schedule` written by hand: compiled for a cluster, run by its devices."""

from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.bundle_runs import ran
from helpers.worlds.schedules import cluster

from pcp.bundle import Bundle
from pcp.tools import compile

#: @first makes x · w, @second the tanh of that; @idle has nothing to do.
MODEL = """
func.func @main(
    %x: TENSOR {pcp.name = "x"}, %w: TENSOR {pcp.name = "w"})
    -> (TENSOR {pcp.name = "y"}, TENSOR {pcp.name = "product"}) {
  %xa, %wa = builtin.unrealized_conversion_cast %x, %w : TENSOR, TENSOR to FIRST, FIRST
  %s:2 = "pcp.schedule"(%xa, %wa) ({
  ^bb0(%x0: FIRST, %w0: FIRST):
    %h = "pcp.task"(%x0, %w0) ({
    ^bb0(%i: TENSOR, %j: TENSOR):
      %0 = stablehlo.dot_general %i, %j, contracting_dims = [1] x [0]
        : (TENSOR, TENSOR) -> TENSOR
      "pcp.yield"(%0) : (TENSOR) -> ()
    }) {device = @first, dir = "fwd", microbatch = 0, stage = 0}
      : (FIRST, FIRST) -> FIRST
    %t = "pcp.transfer"(%h) : (FIRST) -> SECOND
    %y = "pcp.task"(%t) ({
    ^bb0(%i: TENSOR):
      %0 = stablehlo.tanh %i : TENSOR
      "pcp.yield"(%0) : (TENSOR) -> ()
    }) {device = @second, dir = "fwd", microbatch = 0, stage = 1}
      : (SECOND) -> SECOND
    "pcp.yield"(%y, %t) : (SECOND, SECOND) -> ()
  }) {kind = "custom", microbatches = 1} : (FIRST, FIRST) -> (SECOND, SECOND)
  %y, %p = builtin.unrealized_conversion_cast %s#0, %s#1 : SECOND, SECOND
    to TENSOR, TENSOR
  return %y, %p : TENSOR, TENSOR
}
""".replace("FIRST", "!pcp.on<TENSOR, @first>").replace(
    "SECOND", "!pcp.on<TENSOR, @second>"
)


def compiled(folder: Path, *flags: str) -> int:
    model = folder / "sched.mlir"
    model.write_text(MODEL.replace("TENSOR", "tensor<4x4xf32>"))
    bundle = str(folder / "sched.pcp")
    return compile.main([str(model), "--cache", "off", "-o", bundle, *flags])


@pytest.mark.slow  # the example has three processes
def test_two_tasks_run_on_two_devices(tmp_path: Path, capsys) -> None:
    """Two processes over TCP; a device has its tasks and its arguments alone."""
    path = cluster(tmp_path, "idle", "second", "first")
    assert compiled(tmp_path, "--cluster", str(path)) == 0
    said = capsys.readouterr().out
    assert "mode forward: the model has a pcp.schedule" in said
    assert "idle of the cluster: in no place of the mesh, and idle" in said
    assert "ranks 0 to 1 are second, first; which of them does what" in said
    manifest = Bundle.read(tmp_path / "sched.pcp").manifest
    programs = {n: p.functions["main"] for n, p in manifest.programs.items()}
    assert set(programs) == {"first", "second"}
    assert [t.name for t in programs["first"].inputs] == ["x", "w"]
    assert [t.name for t in programs["second"].results] == ["y", "product"]
    random = np.random.default_rng(0)
    given = {n: random.normal(size=(4, 4)).astype(np.float32) for n in "xw"}
    found = ran(tmp_path / "sched.pcp", given)
    product = given["x"] @ given["w"]
    np.testing.assert_allclose(found["product"], product, rtol=1e-5)
    np.testing.assert_allclose(found["y"], np.tanh(product), rtol=1e-5)


def test_what_a_mesh_beside_a_schedule_counts_for_is_said(tmp_path, capsys) -> None:
    path = str(cluster(tmp_path, "first", "second"))
    flags = ["--emit", "mlir", "--cluster", path, "--mesh", "pp=2"]
    assert compiled(tmp_path, *flags) == 0
    said = capsys.readouterr().out
    assert "--mesh pp=2: ranks 0 to 1 are first, second; which of them" in said


@pytest.mark.parametrize(
    ("devices", "flags", "says"),
    [
        (["first", "secnd"], [], "tasks on @second, which is no device of the cluster"),
        (["second", "first", "x"], ["--mesh", "pp=3"], ""),
        (
            ["x", "first", "second"],
            ["--mesh", "pp=2"],
            "it has tasks or values on @sec",
        ),
        (["first", "second"], ["--mode", "grad"], "no derivative is taken of it"),
        (["first", "second"], ["--mesh", "dp=2"], "--mesh is what the model's"),
        (["first", "second"], ["--zero", "1"], "the model's pcp.schedule decides"),
        (["first", "second"], ["--schedule", "1f1b"], "pcp.schedule decides"),
        ([], ["--target", "cpu"], "say which devices run it, --cluster FILE"),
    ],
)
def test_what_no_schedule_can_be_compiled_for_is_said(
    devices: list[str], flags: list[str], says: str, tmp_path: Path, capsys
) -> None:
    if devices:
        flags = [*flags, "--cluster", str(cluster(tmp_path, *devices))]
    code = compiled(tmp_path, "-q", "--emit", "mlir", *flags)
    assert code == (1 if says else 0)
    assert says in capsys.readouterr().err


EXAMPLE = Path(__file__).parents[3] / "examples" / "heterogeneous"


def test_the_example_runs_over_three_processes(tmp_path: Path, capsys) -> None:
    """Sums of vectors on two devices, and on a third what is made of both."""
    bundle = tmp_path / "sums.pcp"
    flags = ["--cluster", str(EXAMPLE / "cluster.json"), "-o", str(bundle)]
    assert compile.main([str(EXAMPLE / "vector_add.mlir"), *flags]) == 0
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (2, 20)).astype(np.int32)
    found = ran(bundle, {"a": a, "b": b})
    assert "(3 processes)" in capsys.readouterr().out
    np.testing.assert_array_equal(found["c"], a + b)
    assert found["total"] == (a + b) @ (a + 2 * b)
    assert found["total"].dtype == np.int32


#: Softmax of a matrix product, in named and generic ops; rows around it are ones.
LINALG = """
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func @main(
    %x: tensor<4x8xf32> {pcp.name = "x"}, %w: tensor<8x5xf32> {pcp.name = "w"})
    -> (tensor<4x5xf32> {pcp.name = "y"}, tensor<6x5xf32> {pcp.name = "padded"}) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %0 = tensor.empty() : tensor<4x5xf32>
  %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<4x5xf32>) -> tensor<4x5xf32>
  %2 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x5xf32>)
    outs(%1 : tensor<4x5xf32>) -> tensor<4x5xf32>
  %3 = math.exp %2 : tensor<4x5xf32>
  %4 = tensor.empty() : tensor<4xf32>
  %5 = linalg.fill ins(%zero : f32) outs(%4 : tensor<4xf32>) -> tensor<4xf32>
  %6 = linalg.reduce {arith.addf} ins(%3 : tensor<4x5xf32>) outs(%5 : tensor<4xf32>)
    dimensions = [1]
  %7 = linalg.generic
      {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%3, %6 : tensor<4x5xf32>, tensor<4xf32>) outs(%0 : tensor<4x5xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %d = arith.divf %a, %b : f32
    linalg.yield %d : f32
  } -> tensor<4x5xf32>
  %8 = tensor.pad %7 low[1, 0] high[1, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %one : f32
  } : tensor<4x5xf32> to tensor<6x5xf32>
  %9 = stablehlo.multiply %7, %7 : tensor<4x5xf32>
  return %9, %8 : tensor<4x5xf32>, tensor<6x5xf32>
}
"""


def test_linalg_and_stablehlo_stand_in_one_program(tmp_path: Path) -> None:
    model = tmp_path / "linalg.mlir"
    model.write_text(LINALG)
    bundle = tmp_path / "linalg.pcp"
    assert compile.main([str(model), "--target", "cpu", "-o", str(bundle)]) == 0
    random = np.random.default_rng(0)
    x, w = random.normal(size=(4, 8)), random.normal(size=(8, 5))
    found = ran(bundle, {"x": x.astype(np.float32), "w": w.astype(np.float32)})
    exponentials = np.exp(x @ w)
    softmax = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(found["y"], softmax**2, rtol=1e-5)
    padded = np.pad(softmax, ((1, 1), (0, 0)), constant_values=1)
    np.testing.assert_allclose(found["padded"], padded, rtol=1e-5)


@pytest.mark.parametrize("mesh", ["dp=2", "pp=2"])
def test_linalg_is_not_cut_over_a_mesh(mesh: str, tmp_path: Path, capsys) -> None:
    model = tmp_path / "linalg.mlir"
    model.write_text(LINALG)
    assert compile.main([str(model), "--target", "cpu", "--mesh", mesh]) == 1
    said = capsys.readouterr().err
    assert "linalg.mlir:9:8: tensor.empty: it goes to IREE as it stands" in said
