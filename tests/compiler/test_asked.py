"""What only a program over a mesh has is not asked for without one."""

from pathlib import Path
from typing import Any

import pytest

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import ConfigError

MODEL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("--zero", {"zero": 3}),
        ("--sharding", {"sharding": "megatron.json"}),
        ("--microbatches", {"microbatches": 8}),
        ("--schedule", {"schedule": "1f1b"}),
        ("--tied", {"tied": True}),
        ("--wire", {"wire": "bf16"}),
    ],
)
def test_it_is_refused(flag: str, options: dict[str, Any]) -> None:
    asked = CompileOptions(mode="forward", cache=None, source="m.mlir", **options)
    with pytest.raises(ConfigError, match=f"m.mlir: {flag} is for a program over sev"):
        driver.compile(parse(MODEL), asked)


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("--microbatches", {"microbatches": 8}),
        ("--schedule", {"schedule": "zb-h1"}),
        ("--tied", {"tied": True}),
    ],
)
def test_what_stages_have_is_refused_without(
    flag: str, options: dict[str, Any]
) -> None:
    asked = CompileOptions(mode="forward", mesh="dp=2", source="m.mlir", **options)
    with pytest.raises(ConfigError, match=f"m.mlir: {flag} is for pipeline stages"):
        driver.lower(parse(MODEL), asked)


@pytest.mark.parametrize("sharding", [None, "auto", "none"])
def test_what_spreads_nothing_is_allowed(sharding: str | None, tmp_path: Path) -> None:
    asked = CompileOptions(mode="forward", sharding=sharding, cache=tmp_path)
    assert driver.lower(parse(MODEL), asked).manifest.functions


SCALAR = """
func.func @main(%w: tensor<4xf32>, %x: tensor<4xi32>) -> tensor<f32> {
  %0 = stablehlo.convert %x : (tensor<4xi32>) -> tensor<4xf32>
  %1 = stablehlo.dot_general %w, %0, contracting_dims = [0] x [0]
    : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
"""


@pytest.mark.parametrize("mesh", ["dp=1", "tp=1,dp=1", "pp=1"])
@pytest.mark.parametrize("mode", ["forward", "grad", "train"])
def test_a_mesh_of_one_device_is_no_mesh(mesh: str, mode: str) -> None:
    """The same program to the byte, the same manifest, the same defaults."""
    whole, spread = (
        driver.lower(parse(SCALAR), CompileOptions(mode=mode, mesh=asked))
        for asked in (None, mesh)
    )
    assert str(spread.module) == str(whole.module)
    assert spread.source == whole.source
    assert spread.manifest == whole.manifest
    assert spread.mesh is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mesh": "dp=1", "split": "tp=1"}, 'no axis "tp"'),
        ({"mesh": "dp=1", "schedule": "1f1b"}, "is for pipeline stages"),
        ({"mesh": "pp=1", "zero": 1}, "leave --zero and --sharding out"),
        ({"mesh": "dp=1", "sharding": "no/such.json"}, "cannot read"),
    ],
)
def test_what_is_said_of_one_device_is_checked(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        driver.lower(parse(SCALAR), CompileOptions(mode="grad", **options))


def test_a_cluster_file_has_the_targets() -> None:
    assert CompileOptions(cluster=Path("c.json")).target_names == ("cpu",)
    for target in ("sm_90a", "cpu"):
        with pytest.raises(ConfigError, match=f"target '{target}': the devices of a"):
            CompileOptions(targets=(target,), cluster=Path("c.json"))
