"""Reading programs: what is wrong with a file is one line that says where."""

import pytest

from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse, parse_bytes, read
from pcp.dialect.diagnostics import location_string
from pcp.errors import IRError

GOOD = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


def test_text_and_bytecode_files_read_alike(tmp_path):
    module = parse(GOOD)
    text, bytecode = tmp_path / "a.mlir", tmp_path / "a.mlirbc"
    text.write_text(GOOD)
    with bytecode.open("wb") as file:
        module.operation.write_bytecode(file)
    assert str(read(text)) == str(read(bytecode)) == str(module)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "m: empty input, there is no program to read"),
        (b"  \n\n", "m: empty input, there is no program to read"),
        (b"func.func @f() {\n  return\n\xff", "m:3: neither MLIR text nor MLIR byte"),
        (b"ML\xefR broken", "m"),
        (b"func.func @f() {\n  foo\n}", "m:2:3: "),
        (b'"no.such"() : () -> ()', "m:1:10: .*unregistered"),
    ],
)
def test_what_cannot_be_read_says_where(content, message):
    with pytest.raises(IRError, match=message):
        parse_bytes(content, source="m")


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(IRError, match=r"none\.mlir: cannot read the model: No such"):
        read(tmp_path / "none.mlir")


def test_diagnostics_leave_out_the_op_printed_again():
    with pytest.raises(IRError) as caught:
        parse("func.func @f() -> i32 { return }")
    assert "see current operation" not in str(caught.value)
    assert str(caught.value).startswith("-:1:25: 'func.return' op has 0 operands")


def test_notes_that_help_stay():
    with pytest.raises(IRError, match="see existing symbol definition here"):
        parse("func.func private @f()\nfunc.func private @f()")


def test_locations_name_the_source():
    with make_context():
        file = ir.Location.file("a.mlir", 3, 7)
        assert location_string(file) == "a.mlir:3:7"
        assert location_string(ir.Location.unknown(), "m.mlir") == "m.mlir"
        nowhere = parse(GOOD).operation.location
        assert str(nowhere) == 'loc("-":0:0)'
        assert location_string(nowhere, "m.mlir") == "m.mlir"
        assert location_string(ir.Location.file("-", 1, 2), "m.mlir") == "m.mlir:1:2"
