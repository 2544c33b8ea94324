"""`pcp plan`, `pcp probe` and `pcp-compile --cluster`, as a user calls them."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.bundle_runs import ran

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


def _layers(*names: str, width: int = 32, batch: int = 16) -> str:
    """The sum of squares behind layers x -> tanh(x w), with these parameters."""
    x, w = f"tensor<{batch}x{width}xf32>", f"tensor<{width}x{width}xf32>"
    ports = [
        f'%{name}: {w} {{pcp.role = "param", pcp.name = "{name}"}}'
        for name in dict.fromkeys(names)
    ]
    lines = [
        f"%p{i} = stablehlo.dot_general %h{i}, %{name}, contracting_dims = [1] x [0]"
        f" : ({x}, {w}) -> {x}\n%h{i + 1} = stablehlo.tanh %p{i} : {x}"
        for i, name in enumerate(names)
    ]
    last, body = f"%h{len(names)}", "\n".join(lines)
    return f"""
func.func @main({", ".join(ports)},
    %h0: {x} {{pcp.role = "data", pcp.name = "x"}}) -> tensor<f32> {{
  {body}
  %s = stablehlo.multiply {last}, {last} : {x}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add
      across dimensions = [0, 1] : ({x}, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}}"""


def test_why_stages_are_impossible(model: Path, cluster: Path, capsys) -> None:
    """There are no several microbatches of an extremum over the batch."""
    text = _layers("w", "v")
    model.write_text(text.replace("stablehlo.add", "stablehlo.maximum"))
    argv = ["plan", str(model), "--cluster", str(cluster), "--mode", "forward"]
    assert main(argv) == 0
    rows = capsys.readouterr().out.splitlines()
    line = 1 + next(i for i, s in enumerate(text.splitlines()) if "reduce(" in s)
    where = f"{model}:{line}:"
    found = [row for row in rows if row.startswith("pp=2")]
    whole = [row for row in found if "microbatches=1 " in row]
    assert whole
    assert len(found) > len(whole)
    assert "impossible" not in "".join(whole)
    for why in set(found) - set(whole):
        assert f": impossible: {where}" in why
        assert "microbatches do not separate here: it takes an extremum" in why
    key = '%k: tensor<2xui32> {pcp.role = "key", pcp.name = "noise"}, %h0:'
    model.write_text(text.replace("%h0:", key))
    assert main([*argv, "--mesh", "pp=2"]) == 1
    error = capsys.readouterr().err
    assert "no layout of these plans is possible\npp=2 " in error
    assert "has key 'noise'" in error


def _pipeline_cluster(path: Path) -> None:
    """Nobody holds the whole model, and sums of gradients take long."""
    content = json.loads(path.read_text())
    for device in content["devices"].values():
        device["memory"] = 450_000
    content["links"][0]["bandwidth"] = 2e6
    path.write_text(json.dumps(content))


@pytest.mark.slow
def test_stages_are_taken_compiled_and_run(
    model: Path, cluster: Path, tmp_path: Path, capsys
) -> None:
    """The plan taken, by itself and by its flags, trains as one device does."""
    model.write_text(_layers("w0", "w1", "w2", "w3", width=128))
    _pipeline_cluster(cluster)
    out = tmp_path / "plans.json"
    argv = [str(model), "--cluster", str(cluster), "--mode", "train"]
    argv += ["--optimizer", "sgd{lr=0.1}"]
    assert main(["plan", *argv, "--json", str(out)]) == 0
    (taken,) = [p for p in json.loads(out.read_text())["plans"] if p["taken"]]
    assert taken["mesh"] == {"pp": 2}
    flags = {"chosen": argv, "asked": [*argv, *taken["flags"]]}
    flags["alone"] = [*argv[:1], *argv[3:], "--target", "cpu:host"]
    data = tmp_path / "data.npz"
    random = np.random.default_rng(0)
    np.savez(data, x=random.normal(size=(16, 128)).astype(np.float32))
    results = {}
    for name, own in flags.items():
        bundle = tmp_path / f"{name}.pcp"
        command = [*own, "--cache", "off", "-q", "-o", str(bundle)]
        assert pcp_compile.main(command) == 0
        results[name] = ran(bundle, data, "--steps", "3")
    chosen, asked = (Bundle.read(tmp_path / f"{n}.pcp") for n in ("chosen", "asked"))
    assert chosen.manifest.partition_mesh() == asked.manifest.partition_mesh()
    assert chosen.manifest.programs == asked.manifest.programs
    alone = results.pop("alone")
    assert alone["losses"][-1] < alone["losses"][0]
    for found in results.values():
        assert found.keys() == alone.keys()
        for name, b in alone.items():
            assert np.abs(found[name] - b).max() <= 1e-5 * (1e-3 + np.abs(b).max())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--microbatches", "2"], "--microbatches goes with --mesh"),
        (["--sharding", "none"], "--sharding goes with --mesh"),
        (["--zero", "1"], "--zero goes with --mesh"),
        (["--schedule", "1f1b"], "--schedule goes with --mesh"),
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


@pytest.mark.slow  # it measures a device
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
