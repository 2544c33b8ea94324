"""Files of StableHLO: text, bytecode, portable artifacts, and what is none."""

from pathlib import Path

import pytest

from pcp.dialect.bindings import stablehlo
from pcp.dialect.context import parse
from pcp.errors import IRError
from pcp.frontends.stablehlo import load

TEXT = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def test_text_bytecode_and_artifact_are_the_same_program(tmp_path: Path) -> None:
    module = parse(TEXT)
    with (tmp_path / "bytecode.mlirbc").open("wb") as file:
        module.operation.write_bytecode(file)
    version = stablehlo.get_current_version()
    artifact = stablehlo.serialize_portable_artifact_str(TEXT.encode(), version)
    (tmp_path / "artifact.mlirbc").write_bytes(artifact)
    (tmp_path / "text.mlir").write_text(TEXT)
    for name in ("bytecode.mlirbc", "artifact.mlirbc", "text.mlir"):
        assert "stablehlo.add" in str(load(tmp_path / name)), name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT.replace("add", "ad").encode(), r"m\.mlir:2:\d+: .*stablehlo\.ad"),
        (TEXT.replace("@main", "@f").encode(), r"no function @main \(it has: @f\)"),
        (b"", "empty input"),
        (b"\xff\xfe", "neither MLIR text nor MLIR bytecode"),
        (b"ML\xefR\x0dStableHLO_v1.0.0\x00rest", "not a StableHLO portable artifact"),
    ],
)
def test_bad_files_are_errors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.mlir"
    path.write_bytes(content)
    with pytest.raises(IRError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IRError, match="cannot read the model: No such file"):
        load(tmp_path / "none.mlir")
