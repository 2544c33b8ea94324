"""A `pcp.schedule` written by hand: compiled for a cluster, run by its devices."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.bundle_runs import ran

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
DEVICE = {"target": "cpu", "memory": 1 << 30, "throughput": {"f32": 1e10}, "membw": 1e9}


def cluster(folder: Path, *names: str) -> Path:
    devices = {name: {**DEVICE, "ordinal": i} for i, name in enumerate(names)}
    links = [{"ends": list(names), "bandwidth": 1e9, "latency_ns": 2e4}]
    path = folder / "c.json"
    path.write_text(json.dumps({"devices": devices, "links": links}))
    return path


def compiled(folder: Path, *flags: str) -> int:
    model = folder / "sched.mlir"
    model.write_text(MODEL.replace("TENSOR", "tensor<4x4xf32>"))
    bundle = str(folder / "sched.pcp")
    return compile.main([str(model), "--cache", "off", "-o", bundle, *flags])


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
