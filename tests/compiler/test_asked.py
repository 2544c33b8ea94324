"""What only a program over a mesh has is not asked for without one."""

from pathlib import Path

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
def test_it_is_refused(flag: str, options: dict[str, object]) -> None:
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
    flag: str, options: dict[str, object]
) -> None:
    asked = CompileOptions(mode="forward", mesh="dp=2", source="m.mlir", **options)
    with pytest.raises(ConfigError, match=f"m.mlir: {flag} is for pipeline stages"):
        driver.lower_partitioned(parse(MODEL), asked)


@pytest.mark.parametrize("sharding", [None, "auto", "none"])
def test_what_spreads_nothing_is_allowed(sharding: str | None, tmp_path: Path) -> None:
    asked = CompileOptions(mode="forward", sharding=sharding, cache=tmp_path)
    assert driver.lower(parse(MODEL), asked).manifest.functions
