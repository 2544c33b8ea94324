"""pcp-assign-target and pcp-strip-metadata: what IREE sees, and what it does not."""

import pytest
from helpers.models.stablehlo_small import TRAIN

from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.base import verify
from pcp.passes.ingest.strip_metadata import strip_metadata
from pcp.passes.legalize.assign_target import DEVICES, assign_target, device_attribute


@pytest.mark.parametrize("target", [*DEVICES, "cpu:znver4"])
def test_the_module_says_its_device_once(target: str) -> None:
    module = parse(TRAIN)
    assign_target(module, "vulkan")
    assign_target(module, target)
    module.context.allow_unregistered_dialects = True
    verify(module, "pcp-assign-target")
    text = str(module)
    assert text.count("hal.device.targets") == 1
    assert f'pcp.target = "{target}"' in text
    assert device_attribute(target).removesuffix(" : !hal.device") in text


@pytest.mark.parametrize("target", ["sm_90", "sm_90a"])
def test_hopper_is_described_in_full(target: str) -> None:
    attribute = device_attribute(target)
    assert f'arch = "{target}"' in attribute
    assert attribute.count("<") == attribute.count(">")
    assert attribute.count("[") == attribute.count("]")


@pytest.mark.parametrize("target", ["sm_91", "vulkan:x", "", "hip"])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(PassError, match=r"unknown target.*sm_90a"):
        assign_target(parse(TRAIN), target)


DESCRIBED = """
module attributes {pcp.optimizer = "adamw", other.kept = 1 : i64} {
  "pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "w"}
      : () -> ()
  func.func @main(%x: tensor<4xf32> {pcp.role = "data", iree.abi.output = 0 : index})
      -> (tensor<4xf32> {pcp.name = "y"}) {
    %0 = stablehlo.add %x, %x {pcp.note = "n"} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def test_stripping_leaves_the_program_and_what_is_not_ours() -> None:
    module = parse(DESCRIBED)
    strip_metadata(module)
    verify(module, "pcp-strip-metadata")
    text = str(module)
    assert "pcp" not in text
    assert "iree.abi.output = 0 : index" in text
    assert "other.kept = 1 : i64" in text
    assert "stablehlo.add" in text


def test_what_computes_is_not_stripped_away() -> None:
    text = DESCRIBED.replace(
        "stablehlo.add %x, %x {",
        '"pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @w, ',
    ).replace('pcp.note = "n"} : tensor', "} : (tensor<4xf32>) -> tensor")
    text = text.replace("mesh = @w, }", "mesh = @w}")
    with pytest.raises(PassError, match=r"7:\d+: pcp\.all_reduce: not lowered"):
        strip_metadata(parse(text))
