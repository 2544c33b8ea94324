"""Values of several types through ops that take values of one."""

import pytest

from pcp.compiler.catalog import pipeline
from pcp.dialect import asynchronous, state
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import bundled, pack, unpack
from pcp.dialect.context import make_context, parse

SAME = "func.func @f(%a: tensor<4xf32>, %b: tensor<4xf32>) { return }"
MIXED = "func.func @f(%a: tensor<4xf32>, %b: tensor<2xi32>) { return }"


def build(text, make):
    """`make(arguments)` at the start of the function; the verified module."""
    context = make_context()
    with context, ir.Location.unknown():
        module = parse(text, context)
        block = module.body.operations[0].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            make(list(block.arguments))
    assert module.operation.verify()
    return module


@pytest.mark.parametrize(("text", "casts"), [(SAME, 0), (MIXED, 2)])
def test_param_sync_of_any_types(text, casts):
    def make(values):
        out = state.param_sync(values, mesh="w", axes=["workers"])
        assert [v.type for v in out] == [v.type for v in values]

    module = build(text, make)
    assert str(module).count("builtin.unrealized_conversion_cast") == casts


def test_a_pack_that_is_unpacked_goes():
    def make(values):
        for value in unpack(pack(values)):
            group = {
                "action": ir.StringAttr.get("trap"),
                "mesh": ir.FlatSymbolRefAttr.get("w"),
                "axes": ir.ArrayAttr.get([ir.StringAttr.get("workers")]),
            }
            ir.Operation.create("pcp.parity", operands=[value], attributes=group)

    module = build(MIXED, make)
    assert str(module).count("builtin.unrealized_conversion_cast") == 2
    assert "unrealized" not in str(pipeline("canonicalize").run(module))


def test_one_type_is_no_tuple():
    with make_context():
        f32, i32 = ir.Type.parse("tensor<f32>"), ir.Type.parse("tensor<i32>")
        assert bundled([]) == []
        assert bundled([f32, f32]) == [f32, f32]
        assert str(bundled([f32, i32])) == str([ir.Type.parse(f"tuple<{f32}, {i32}>")])


def test_a_collective_can_be_started_and_waited_for():
    context = make_context()
    text = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    module = parse(text, context)
    reduce, end = module.body.operations[0].regions[0].blocks[0].operations
    with context, ir.Location.unknown():
        future = asynchronous.start(reduce, channel=3)
        with ir.InsertionPoint(reduce):
            (value,) = asynchronous.wait(future)
        reduce.operation.results[0].replace_all_uses_with(value)
        reduce.operation.erase()
    assert module.operation.verify()
    assert end.operands[0] == value
    assert str(module).count("pcp.all_reduce") == 1
