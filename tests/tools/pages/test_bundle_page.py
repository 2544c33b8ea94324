"""What a run's page says of its programs: as the bundle has it, and escaped."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from helpers.models.stablehlo_small import TANH_SUM

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.manifest import Collective, Function, Manifest, TensorSpec
from pcp.tools.pages.bundle_page import content, programs
from pcp.tools.pages.program_lines import PROGRAM, calls, reads
from pcp.training.storage.run_folder import RunFolder

NAME = "<img src=x onerror=alert(1)>"
TEXT = """module {
  func.func @init(%arg0: tensor<2xui32> {pcp.name = "w", pcp.role = "key"}) {
    %0 = stablehlo.negate %arg0 : tensor<2xui32>
  }
  func.func @grad(%arg0: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, \
%arg1: tensor<4xf32> {pcp.name = "x"}) {
    %0 = stablehlo.add %arg1, %arg1 : tensor<4xf32>
    %1 = "stablehlo.multiply"(%arg0, %arg1) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "util.call"(%arg0) {callee = @pcp_rt.sum_0} : (tensor<4xf32>) -> tensor<4xf32>
  }
}
"""


def whole(*names: str) -> Bundle:
    """A bundle for every worker, whose parameters have these names."""
    inputs = tuple(
        TensorSpec(shape=(4,), dtype="f32", name=n, role="param") for n in names
    )
    sum_ = Collective(
        shape=(4,), dtype="f32", kind="all_reduce", reduction="sum", bytes=16
    )
    manifest = Manifest(
        mode="grad",
        functions={"grad": Function(inputs=inputs, results=())},
        collectives={"sum_0": sum_},
    )
    return Bundle.build(manifest, {PROGRAM: TEXT.encode()})


@pytest.fixture(scope="module")
def spread() -> Bundle:
    """Gradients over two devices."""
    options = CompileOptions(mode="grad", mesh="dp=2")
    return driver.compile(parse(TANH_SUM), options)


def test_the_lines_of_a_program() -> None:
    found = reads(whole("w"))
    assert found == {("data", "x"): "6 add", ("param", "w"): "7 multiply"}
    assert calls(whole("w")) == {"sum_0": [8]}


def test_what_stands_in_a_bundle_is_escaped() -> None:
    text = "".join(content(whole("w", NAME), "b.pcp"))
    ElementTree.fromstring(f"<p>{text}</p>")
    assert "<img" not in text
    assert "onerror=alert(1)&gt;" in text
    assert "<td>7 multiply</td>" in text
    assert "<td>8</td>" in text


def test_a_plan_is_drawn(spread: Bundle) -> None:
    text = "".join(content(spread, "b.pcp"))
    page = ElementTree.fromstring(f"<p>{text}</p>")
    (mesh,) = [each for each in page.iter() if each.get("class") == "mesh"]
    assert len(mesh) == 2, "a box for each device of the mesh"
    assert "all_reduce" in text
    assert "_dispatch_" in text
    lines = spread.ir("program").splitlines()
    found = reads(spread, "mesh_1")
    assert {name for _, name in found} == {
        t.name for t in spread.manifest.functions["grad"].inputs
    }
    for told in found.values():
        number, _, op = told.partition(" ")
        assert op in lines[int(number) - 1]
        assert "%arg" in lines[int(number) - 1]


def test_the_programs_of_a_run(spread: Bundle, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert programs(tmp_path) == {}
    folder.keep_program("cpu:host/../x", b"no bundle")
    (name,) = programs(tmp_path)
    assert name == "cpu-host-..-x"
    assert "not a pcp bundle" in programs(tmp_path)[name]
    folder.keep_program("cpu:host/../x", spread.to_bytes())
    assert "Mesh @" in programs(tmp_path)[name]
