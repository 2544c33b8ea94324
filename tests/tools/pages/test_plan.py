"""`pcp inspect --plan`: the page says what the program does, and is well formed."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from helpers.models import sharded, stablehlo_small
from helpers.oracles import pipelines

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.core.sizes import bytes_text
from pcp.tools import cli, compile
from pcp.tools.pages.plan import DevicePlan
from pcp.tools.pages.plan_of_ir import of_module
from pcp.tools.pages.plan_page import page

SPLIT = (
    "builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-partition,"
    "pcp-verify-plan)"
)


def _product(members: int) -> DevicePlan:
    """x[8·m, 64·m] · w over `members`, the contraction cut: one sum of 8·m rows."""
    n = 64 * members
    text = f"""
    "pcp.mesh"() {{axes = [#pcp.axis<"tp", {members}>], devices = [], sym_name = "m"}}
      : () -> ()
    func.func @main(%x: tensor<8x{n}xf32> {{pcp.name = "x", pcp.role = "data",
        pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}},
        %w: tensor<{n}x4xf32> {{pcp.name = "<w>", pcp.role = "param"}})
        -> tensor<8x4xf32> {{
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x{n}xf32>, tensor<{n}x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32>
    }}"""
    module = parse(text)
    pipeline(SPLIT).run(module)
    return of_module(module, "product")


@pytest.mark.parametrize("members", [1, 4, 64])
def test_what_devices_hold_and_say(members: int) -> None:
    plan = _product(members)
    assert len(plan.devices) == members
    for device in plan.devices:
        assert {h.name: h.shape for h in device.held} == {"x": (8, 64), "<w>": (64, 4)}
        assert device.bytes == 4 * (8 * 64 + 64 * 4)
        if members > 1:
            (exchange,) = device.exchanges
            assert (exchange.kind, exchange.axes) == ("all_reduce sum", ("tp",))
            assert exchange.bytes == 8 * 4 * 4
            assert len(exchange.members) == members
    if members > 1:
        assert plan.totals() == {("tp",): (1, 128)}


@pytest.mark.parametrize("members", [1, 64])
def test_the_page_is_well_formed_and_needs_nothing(members: int) -> None:
    text = page(_product(members))
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert text.count("class='card'><b>") == members
    assert ("class='devices many'" in text) == (members == 64)
    assert "&lt;w&gt;" in text
    assert "src=" not in text
    assert "http" not in text


@pytest.mark.slow  # a program more
def test_a_bundle_as_text_and_as_a_page(tmp_path: Path, capfd) -> None:
    (tmp_path / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    (tmp_path / "r.json").write_text(json.dumps({"tensors": {"x": [["dp"]]}}))
    bundle = tmp_path / "m.pcp"
    flags = ["--target", "cpu", "--mesh", "dp=2", "-q", "-o", str(bundle)]
    flags += ["--sharding", str(tmp_path / "r.json"), "--cache", "off"]
    assert compile.main([str(tmp_path / "m.mlir"), *flags]) == 0
    assert cli.main(["inspect", str(bundle)]) == 0
    said = capfd.readouterr().out
    assert "2 devices over dp=2" in said
    assert "over dp: " in said
    out = tmp_path / "plan.html"
    assert cli.main(["inspect", str(bundle), "--plan", "-o", str(out)]) == 0
    text = out.read_text()
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert "f32[4, 4]" in text  # half of x
    assert "all_reduce sum" in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--plan", "-o", "plan.png"], "name it *.html"),
        (["-o", "plan.html"], "-o goes with --plan"),
        (["--plan", "-o", "plan.html"], "exactly one pcp.mesh"),
    ],
)
def test_what_cannot_be_drawn(flags, says, tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    assert cli.main(["inspect", "m.mlir", *flags]) != 0
    assert says in capfd.readouterr().err


def test_the_timeline_of_a_schedule() -> None:
    stages, count = 4, 8
    plan = of_module(pipelines.scheduled_chain(stages, count, "1f1b"), "chain")
    forward = [b for b in plan.boxes if b.direction == "fwd"]
    assert len(forward) == stages * count
    assert any(b.direction == "bwd" for b in plan.boxes)
    assert {b.device for b in forward} == {d.name for d in plan.devices}
    assert min(b.start for b in forward if b.stage == 2) == 2.0  # behind two others
    text = page(plan)
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert text.count("<span title='fwd of microbatch") == stages * count
    assert f"waiting {plan.bubble:.1%}" in text
    below = text.partition("class='marks'")[2]
    marks = re.findall(r"left:([\d.]+)%'>(\d+)<", below)
    assert [int(said) for _, said in marks] == list(range(0, 31, 5))
    length = max(b.end for b in plan.boxes)
    assert [float(x) for x, _ in marks] == [
        pytest.approx(100 * at / length, abs=0.01) for at in range(0, 31, 5)
    ]
    first = next(b for b in forward if b.start == 0)
    assert "title='fwd of microbatch 0, stage 0' style='left:0.00%" in text
    assert first.device == plan.devices[0].name


def test_the_timeline_has_every_device_of_a_stage() -> None:
    module = pipelines.mixed("mlp", {"pp": 2, "dp": 2}, sharded.dp)
    passes = "pcp-stage{microbatches=4},pcp-schedule{kind=1f1b}"
    pipeline(f"builtin.module({passes})").run(module)
    plan = of_module(module, "mixed")
    forward = [(b.device, b.microbatch) for b in plan.boxes if b.direction == "fwd"]
    assert sorted(forward) == [(f"m_{i}", k) for i in range(4) for k in range(4)]
    ElementTree.fromstring(page(plan).removeprefix("<!DOCTYPE html>\n"))


def test_bytes() -> None:
    assert [bytes_text(n) for n in (5, 349241, 3 << 30)] == [
        "5 B",
        "341.1 KiB",
        "3.0 GiB",
    ]
