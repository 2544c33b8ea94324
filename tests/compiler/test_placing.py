"""`--mesh` over a cluster of unequal devices: places and shares, and what is said."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.models import stablehlo_small
from helpers.present import present

from pcp.bundle import Bundle
from pcp.tools import cli, compile

FAST, SLOW = 3e10, 1e10


def _model(batch: int = 8) -> str:
    """sum(tanh(x w)) of a batch, which is wide enough to be bound by its products."""
    return stablehlo_small.tanh_sum(batch, 16, 6)


def _cluster(folder: Path, *rates: float, hosts: str = "") -> Path:
    names = "abcdefgh"[: len(rates)]
    devices = {
        name: {
            "target": "cpu:host",
            "host": hosts[i : i + 1],
            "ordinal": i,
            "memory": 10**9,
            "throughput": {"f32": rate},
            "membw": rate,
        }
        for i, (name, rate) in enumerate(zip(names, rates, strict=True))
    }
    link = {"ends": list(names), "bandwidth": 1e9, "latency_ns": 1000}
    path = folder / "c.json"
    path.write_text(json.dumps({"devices": devices, "links": [link]}))
    return path


def _lowered(folder: Path, mesh: str, *flags: str, model: str = "") -> str:
    """The programs of all devices, as text."""
    (folder / "m.mlir").write_text(model or _model())
    files = [str(folder / "m.mlir"), "--cluster", str(folder / "c.json")]
    out = ["-o", str(folder / "o.mlir"), "--emit", "mlir", "--mode", "grad"]
    rules = folder / "r.json"
    tensors = {"x": [["dp"]]} | ({"w": [[], ["tp"]]} if "tp" in mesh else {})
    rules.write_text(json.dumps({"tensors": tensors}))
    asked = [] if "--sharding" in flags else ["--sharding", str(rules)]
    assert compile.main([*files, *out, *asked, "--mesh", mesh, *flags]) == 0
    return (folder / "o.mlir").read_text()


def _mesh_line(text: str) -> str:
    return next(line for line in text.splitlines() if '"pcp.mesh"' in line)


def _devices(text: str) -> list[str]:
    return re.findall(r"@(\w+)", present(re.search(r"devices = \[(.*?)\]", text))[1])


def _split(text: str) -> list[int] | None:
    found = re.search(r'#pcp.split<"dp", \[(.*?)\]>', text)
    return (
        [int(present(re.match(r"\d+", n.strip()))[0]) for n in found[1].split(",")]
        if found
        else None
    )


@pytest.mark.slow  # it compiles for a mesh
def test_gradients_of_unequal_shares_are_the_whole_programs(tmp_path, capsys) -> None:
    """Three rows for one, through IREE on two processes."""
    _cluster(tmp_path, SLOW, FAST)
    (tmp_path / "m.mlir").write_text(_model())
    (tmp_path / "r.json").write_text('{"tensors": {"x": [["dp"]]}}')
    flags = ["--cluster", tmp_path / "c.json", "--sharding", tmp_path / "r.json"]
    bundle = tmp_path / "m.pcp"
    more = ["--mesh", "dp=2", "--mode", "grad", "-o", bundle, "--cache", "off"]
    assert compile.main([str(w) for w in (tmp_path / "m.mlir", *flags, *more)]) == 0
    assert "by the devices' rates: a: 2, b: 6" in capsys.readouterr().out
    manifest = Bundle.read(bundle).manifest
    rows = {
        device: next(t.shape for t in p.functions["grad"].inputs if t.name == "x")
        for device, p in manifest.programs.items()
    }
    assert rows == {"a": (2, 16), "b": (6, 16)}
    draw = np.random.default_rng(0)
    x, w = (draw.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 6)))
    np.savez(tmp_path / "in.npz", x=x, w=w)
    run = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(bundle), "--function", "grad", *run]) == 0
    hidden = np.tanh(x.astype(np.float64) @ w)
    with np.load(tmp_path / "o.npz") as found:
        np.testing.assert_allclose(found["loss"], hidden.sum(), rtol=1e-5)
        (name,) = set(found.files) - {"loss"}
        np.testing.assert_allclose(found[name], x.T @ (1 - hidden**2), atol=1e-4)


def test_equal_devices_change_nothing(tmp_path, capsys) -> None:
    """Word for word what the same mesh is without a word on speed."""
    _cluster(tmp_path, FAST, FAST)
    text = _lowered(tmp_path, "dp=2")
    assert _split(text) is None
    assert "by the devices' rates" not in capsys.readouterr().out
    even = _lowered(tmp_path, "dp=2", "--split", "dp=1,1")
    without = re.sub(r', split = #pcp.split<"dp", \[.*?\]>', "", even)
    assert _body(text) == _body(without)


def _body(text: str) -> list[str]:
    return [line for line in text.splitlines() if '"pcp.mesh"' not in line]


def test_one_that_is_hardly_faster_gets_no_more(tmp_path) -> None:
    _cluster(tmp_path, 1.01 * FAST, FAST)
    assert _split(_lowered(tmp_path, "dp=2")) is None


@pytest.mark.parametrize(
    ("rates", "batch", "sizes"),
    [
        ((FAST, SLOW), 16, [12, 4]),
        ((FAST, SLOW, SLOW), 10, [6, 2, 2]),
        ((1e12, SLOW), 8, [7, 1]),  # every member takes part in each exchange
    ],
)
def test_shares_follow_the_rates(tmp_path, rates, batch, sizes) -> None:
    _cluster(tmp_path, *rates)
    text = _lowered(tmp_path, f"dp={len(rates)}", model=_model(batch))
    assert _split(text) == sizes


def test_a_rows_devices_are_alike(tmp_path, capsys) -> None:
    """A row is as fast as its slowest member: the fast share one, the slow another."""
    _cluster(tmp_path, FAST, SLOW, FAST, SLOW)
    text = _lowered(tmp_path, "dp=2,tp=2")
    assert _devices(_mesh_line(text)) == ["a", "c", "b", "d"]
    assert _split(text) == [6, 2]
    assert "a c: 6, b d: 2" in capsys.readouterr().out
    text = _lowered(tmp_path, "tp=2,dp=2")  # the first axis is the slowest
    assert _devices(_mesh_line(text)) == ["a", "b", "c", "d"]
    assert _split(text) == [6, 2]


def test_those_of_a_host_stay_together(tmp_path) -> None:
    _cluster(tmp_path, FAST, SLOW, FAST, SLOW, hosts="xyxy")
    assert _devices(_mesh_line(_lowered(tmp_path, "dp=2,tp=2"))) == list("acbd")
    _cluster(tmp_path, FAST, SLOW, SLOW, FAST, hosts="xxyy")
    text = _lowered(tmp_path, "dp=2,tp=2")
    assert _devices(_mesh_line(text)) == ["a", "b", "d", "c"]
    assert _split(text) is None  # each row has a slow one


def test_what_was_said_by_hand_stays(tmp_path) -> None:
    _cluster(tmp_path, FAST, SLOW)
    text = _lowered(tmp_path, "dp=2", "--split", "dp=1,1")
    assert _split(text) == [1, 1]
    _cluster(tmp_path, FAST, SLOW, FAST, SLOW)
    text = _lowered(tmp_path, "dp=2,tp=2", "--split", "dp=2,1")
    assert _devices(_mesh_line(text)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("rates", "mesh", "flags", "line"),
    [
        ((FAST, SLOW), "tp=2", ["none"], "b takes 3.0 times as long as a, and its"),
        ((FAST, SLOW), "dp=2", ["none"], 'no one batch is cut along "dp"'),
        ((FAST, SLOW) * 2, "pp=2,dp=2", [], "stages, which weigh that, take equal"),
        ((FAST, FAST, SLOW), "dp=2", [], "c of the cluster: in no place of the mesh"),
        (
            (FAST, FAST, SLOW),
            "pp=2",
            ["none"],
            "c of the cluster: in no place of the mesh",
        ),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path, capsys, rates, mesh, flags, line):
    _cluster(tmp_path, *rates)
    model = TWO_LAYERS if "pp" in mesh else ""
    text = _lowered(
        tmp_path, mesh, *(["--sharding", *flags] if flags else []), model=model
    )
    assert line in capsys.readouterr().out
    assert _split(text) is None


TWO_LAYERS = """
func.func @main(%w: tensor<16x16xf32> {pcp.role = "param", pcp.name = "w"},
    %v: tensor<16x16xf32> {pcp.role = "param", pcp.name = "v"},
    %x: tensor<8x16xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %3 = stablehlo.tanh %2 : tensor<8x16xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%3 init: %zero) applies stablehlo.add
      across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
"""


def test_parameters_cut_along_the_batchs_axis_are_no_batch(tmp_path) -> None:
    """Of another size than the batch, and cut in the same proportion."""
    _cluster(tmp_path, FAST, SLOW)
    rules = tmp_path / "p.json"
    rules.write_text('{"tensors": {"x": [["dp"]], "w": [["dp"]]}}')
    assert _split(_lowered(tmp_path, "dp=2", "--sharding", str(rules))) == [6, 2]


def test_what_was_not_measured_is_said(tmp_path, capsys) -> None:
    """The devices have a rate of f32 products, and the program multiplies f64."""
    _cluster(tmp_path, FAST, SLOW)
    text = _lowered(tmp_path, "dp=2", model=_model().replace("f32", "f64"))
    assert _split(text) is None
    said = capsys.readouterr().out
    assert "cannot be weighed, and take equal parts" in said
    assert "no throughput of f64" in said


def test_too_few_devices_are_named(tmp_path, capsys) -> None:
    _cluster(tmp_path, FAST, SLOW)
    (tmp_path / "m.mlir").write_text(_model())
    files = [str(tmp_path / "m.mlir"), "--cluster", str(tmp_path / "c.json")]
    assert compile.main([*files, "--mesh", "dp=4", "-o", str(tmp_path / "o.pcp")]) == 1
    said = capsys.readouterr().err
    assert "--mesh dp=4 has 4 places, and the cluster 2 devices (a, b)" in said
