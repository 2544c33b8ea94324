"""pcp profile: the dispatches of compiled functions, and the kernels of PTX."""

import json
from pathlib import Path

import pytest

import pcp
from pcp.bundle import Bundle
from pcp.tools.commands.profile import main
from pcp.tools.profile import ptx
from pcp.tools.profile.dispatches import dispatches
from pcp.tools.profile.programs import line, profiled

_N = 64
_CHAIN = f"""
func.func @main(%x: tensor<{_N}x{_N}xf32>, %w: tensor<{_N}x{_N}xf32>)
    -> tensor<{_N}x{_N}xf32> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<{_N}x{_N}xf32>, tensor<{_N}x{_N}xf32>) -> tensor<{_N}x{_N}xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<{_N}x{_N}xf32>
  %2 = stablehlo.add %1, %x : tensor<{_N}x{_N}xf32>
  return %2 : tensor<{_N}x{_N}xf32>
}}"""
_GATHER = """
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "mesh"}
    : () -> ()
func.func @main(%x: tensor<8x4xf32>
      {pcp.sharding = #pcp.sharding<@mesh, [["tp"], []], [], []>})
    -> (tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@mesh, [[], []], [], []>}) {
  %0 = stablehlo.exponential %x : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}"""
_GPU = """
func.func @main(%a: tensor<128x64xbf16>, %b: tensor<64x128xbf16>,
                %c: tensor<96x32xf32>, %d: tensor<32x96xf32>)
    -> (tensor<128x128xf32>, tensor<96x96xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<128x64xbf16>, tensor<64x128xbf16>) -> tensor<128x128xf32>
  %1 = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0]
      : (tensor<96x32xf32>, tensor<32x96xf32>) -> tensor<96x96xf32>
  return %0, %1 : tensor<128x128xf32>, tensor<96x96xf32>
}"""

Captured = pytest.CaptureFixture[str]


def _written(bundle: Bundle, folder: Path) -> str:
    path = folder / "model.pcp"
    bundle.write(path)
    return str(path)


def test_a_product_and_a_sum_are_counted(tmp_path: Path, capsys: Captured) -> None:
    bundle = pcp.compile(_CHAIN, targets=["cpu"])
    found = profiled(bundle, None)
    costs = dispatches(found.text, found.target)
    matrix = 4 * _N**2
    by_flops = {cost.flops: cost for cost in costs.values()}
    assert by_flops.keys() == {2 * _N**3, _N**2}
    assert [by_flops[n].bytes for n in sorted(by_flops)] == [3 * matrix, 3 * matrix]
    ops = [line(bundle, by_flops[n].line) for n in sorted(by_flops)]
    assert ops == ["stablehlo.add", "stablehlo.dot_general"]

    file, picture = _written(bundle, tmp_path), tmp_path / "new" / "main.svg"
    assert main([file, "--seconds", "0.01", "--json", "-o", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in report["dispatches"]} == set(costs)
    assert sum(row["share"] for row in report["dispatches"]) == pytest.approx(1)
    assert 0 < max(row["gflops"] for row in report["dispatches"])
    assert "<svg" in picture.read_text()
    assert main([file, "--seconds", "0.01", "--top", "1"]) == 0
    said = capsys.readouterr().out
    assert "@main of model.pcp on local-sync" in said
    assert "and 1 more" in said


def test_collectives_are_answered(tmp_path: Path, capsys: Captured) -> None:
    """The gathered tensor is larger than the part: memory of the right size."""
    file = _written(pcp.compile(_GATHER, targets=["cpu"]), tmp_path)
    assert "all_gather" in str(Bundle.read(file).manifest.programs)
    assert main([file, "--seconds", "0.01"]) == 0
    assert "stablehlo.exponential" in capsys.readouterr().out


def test_kernels_of_ptx(tmp_path: Path, capsys: Captured) -> None:
    bundle = pcp.compile(_GPU, targets=["sm_80"], kernels="none")
    kernels = ptx.kernels(bundle.module())
    low = next(k for k in kernels if "128x128x64" in k.name)
    single = next(k for k in kernels if "96x96x32" in k.name)
    assert low.counts["mma"] > 0
    assert low.remarks == []
    assert single.counts["mma"] == 0
    assert single.counts["fma"] > 0
    assert single.remarks == ["a product without matrix instructions"]
    assert low.threads % 32 == 0
    if ptx.assembler():
        assert low.used is not None
        assert low.used.registers > 0
    assert main([_written(bundle, tmp_path), "--static"]) == 0
    assert "1 products without matrix instructions" in capsys.readouterr().out


def test_kernels_of_our_own(tmp_path: Path, capsys: Captured) -> None:
    bundle = pcp.compile(_GPU, targets=["sm_90a"])
    own = [k for k in ptx.kernels(bundle.module()) if k.name.startswith("pcp_")]
    assert {k.threads for k in own} == {128}
    assert all(k.counts["mma"] and k.counts["cp_async"] for k in own)
    assert main([_written(bundle, tmp_path), "--static"]) == 0
    assert "0 products without matrix instructions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--static"], "holds no PTX (its targets: cpu)"),
        (["--static", "--function", "main"], "--static runs nothing"),
        (["--function", "grad"], "no function 'grad'; there are main"),
        (["--module", "cpus"], "no module 'cpus'; there are cpu"),
        (["--seconds", "0"], "--seconds and --top"),
        (["--device", "cuda"], "iree-benchmark-module ended with status"),
    ],
)
def test_what_cannot_be_done(
    flags: list[str], said: str, tmp_path: Path, capsys: Captured
) -> None:
    file = _written(pcp.compile(_CHAIN, targets=["cpu"]), tmp_path)
    assert main([file, *flags]) != 0
    assert said in capsys.readouterr().err
