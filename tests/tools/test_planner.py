"""`pcp plan`, `pcp probe` and `pcp-compile --cluster`, as a user calls them."""

import json
from pathlib import Path

import pytest

from pcp.bundle import Bundle
from pcp.compiler.cluster import Cluster
from pcp.tools import compile as pcp_compile
from pcp.tools.cli import main

MODEL = """
func.func @main(
    %w: tensor<64x1xf32> {pcp.role = "param", pcp.name = "w"},
    %x: tensor<8192x64xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8192x64xf32>, tensor<64x1xf32>) -> tensor<8192x1xf32>
  %t = stablehlo.tanh %h : tensor<8192x1xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%t init: %zero) applies stablehlo.add
      across dimensions = [0, 1] : (tensor<8192x1xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    device = {"memory": 10**9, "throughput": {"f32": 1e10}, "membw": 1e10}
    content = {
        "devices": {"a": device, "b": device | {"ordinal": 1}},
        "links": [{"ends": ["a", "b"], "bandwidth": 1e9, "latency_ns": 1e4}],
    }
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    return path


def test_the_table(model: Path, cluster: Path, capsys) -> None:
    assert main(["plan", str(model), "--cluster", str(cluster), "--mode", "grad"]) == 0
    out = capsys.readouterr().out
    (taken,) = [line for line in out.splitlines() if "<- taken" in line]
    assert taken.startswith("dp=2 ")
    assert "plans judged" in out


def test_a_mesh_asked_for(model: Path, cluster: Path, capsys) -> None:
    argv = ["plan", str(model), "--cluster", str(cluster), "--mode", "forward"]
    assert main([*argv, "--mesh", "dp=1"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert rows[0].startswith("dp=1 ")
    assert rows[1] == "1 of 1 plans judged"


def test_compiling_takes_the_plan(
    model: Path, cluster: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "model.pcp"
    argv = [str(model), "--cluster", str(cluster), "--mode", "grad", "-o", str(out)]
    assert pcp_compile.main([*argv, "--cache", "off"]) == 0
    manifest = Bundle.read(out).manifest
    assert set(manifest.programs) == {"a", "b"}
    assert manifest.partition_mesh().axes == {"dp": 2}
    assert manifest.programs["a"].functions["grad"].inputs[1].shape == (4096, 64)
    assert "<- taken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sharding", "none"], "--sharding goes with --mesh"),
        (["--zero", "1"], "--zero goes with --mesh"),
    ],
)
def test_a_plan_decides_alone(
    flags: list[str], message: str, model: Path, cluster: Path, capsys
) -> None:
    argv = [str(model), "--cluster", str(cluster), "--mode", "grad", *flags]
    assert pcp_compile.main(argv) == 1
    assert message in capsys.readouterr().err


def test_neither_target_nor_cluster(model: Path, capsys) -> None:
    assert pcp_compile.main([str(model)]) == 2
    assert "--target cpu, or --cluster FILE" in capsys.readouterr().err


def test_too_little_memory(model: Path, cluster: Path, capsys) -> None:
    content = json.loads(cluster.read_text())
    for device in content["devices"].values():
        device["memory"] = 1000
    cluster.write_text(json.dumps(content))
    assert main(["plan", str(model), "--cluster", str(cluster), "--mode", "grad"]) == 1
    error = capsys.readouterr().err
    assert "nothing fits: the least memory is that of" in error
    assert str(model) in error


def test_the_schema_of_clusters(capsys) -> None:
    assert main(["schema", "cluster"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Cluster"


def test_probing_one_device(tmp_path: Path, capsys) -> None:
    path = tmp_path / "cluster.json"
    assert main(["probe", "--seconds", "0.01", "-o", str(path)]) == 0
    (device,) = Cluster.read(path).devices.values()
    assert 1e8 < device.throughput["f32"] < 1e13
    assert 1e7 < device.membw < 1e13
    assert device.memory > 1 << 20
    assert device.alone is None, "it has no others beside it"
    assert f"wrote {path}" in capsys.readouterr().out


@pytest.mark.slow
def test_probing_two_devices_and_their_link(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    argv = ["probe", "--devices", "2", "--memory", "1000000", "--seconds", "0.01"]
    assert main([*argv, "-o", str(path)]) == 0
    cluster = Cluster.read(path)
    assert [d.ordinal for d in cluster.devices.values()] == [0, 1]
    (link,) = cluster.links
    assert link.ends == ("d0", "d1")
    assert 1e6 < link.bandwidth < 1e12
    assert 1e3 < link.latency_ns < 1e10
    for device in cluster.devices.values():
        assert device.alone is not None
        assert 1e8 < device.alone.throughput["f32"] < 1e13
        assert 1e7 < device.alone.membw < 1e13
        assert 0 <= device.exchange_ns < 1e10


def test_probing_wrongly(capsys) -> None:
    assert main(["probe", "--rank", "0"]) == 2
    assert "--world, --rank and --connect go together" in capsys.readouterr().err
    assert main(["probe", "--target", "cpux"]) == 1
    assert "target 'cpux'" in capsys.readouterr().err
