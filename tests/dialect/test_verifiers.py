"""Whatever an op is made of, its verifier answers: valid, or a diagnostic.

Verifiers run before MLIR's own check of operands and attributes, so they meet
ops with anything missing or of any kind.
"""

import random

import pytest

from pcp.dialect.base import Pcp
from pcp.dialect.bindings import ext, ir
from pcp.dialect.context import make_context, parse
from pcp.dialect.loading import FAMILIES

VALUES = [
    "1 : i64",
    "-1 : i64",
    "2 : i64",
    "1.5 : f32",
    "true",
    "unit",
    '"sum"',
    '"sgd"',
    '"sha256"',
    "@m",
    "f32",
    "[]",
    "[0, 1]",
    "[[0, 1], [1, 0]]",
    "[[0], 3]",
    '["dp"]',
    '["dp", 1]',
    "[@a, @b]",
    "[@a, 2]",
    "{}",
    '{f32 = "x"}',
    "{mesh = @m, zero = 1}",
    '[#pcp.axis<"dp", 2>]',
    '[#pcp.axis<"dp", 2>, 4]',
    '#pcp.split<"dp", [1, 1]>',
    '#pcp.split<"dp", ["a"]>',
    '#pcp.sharding<@m, [["dp"]], [], []>',
    "#pcp.sharding<@m, [1], [], []>",
    '#pcp.sharding<@m, [["dp"]], [2], []>',
    '#pcp.dim<["dp"], 1, 0>',
    "#pcp.precision<bf16, f32, f32>",
]
TYPES = [
    "tensor<4xf32>",
    "tensor<8x4xf32>",
    "tensor<0x4xf32>",
    "tensor<?xf32>",
    "tensor<*xf32>",
    "tensor<i32>",
    "tensor<2xi64>",
    "f32",
    "tuple<>",
    "tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>",
    "!pcp.token",
    "!pcp.future<tensor<4xf32>>",
    "!pcp.on<tensor<4xf32>, @a>",
    "!pcp.on<f32, @b>",
]
TRIALS = 150


def random_op(rng, name, fields, block):
    """An op with likely names and unlikely contents, in `block`."""
    operands, attributes, results, regions = ext.partition_fields(fields)
    cls = next(op for op in Pcp.operations if op.OPERATION_NAME == name)
    names = [f.name for f in attributes] + list(cls.optional)
    given = {
        n: ir.Attribute.parse(rng.choice(VALUES)) for n in names if rng.random() < 0.9
    }
    counts = [
        len(group) if rng.random() < 0.7 else rng.randrange(4)
        for group in (operands, results, regions)
    ]
    one = ir.Type.parse(rng.choice(TYPES))
    types = [
        one if rng.random() < 0.7 else ir.Type.parse(rng.choice(TYPES))
        for _ in range(counts[1])
    ]
    values = [
        rng.choice([a for a in block.arguments if a.type == one])
        if rng.random() < 0.7
        else rng.choice(list(block.arguments))
        for _ in range(counts[0])
    ]
    op = ir.Operation.create(
        name, operands=values, results=types, attributes=given, regions=counts[2]
    )
    for region in op.regions:
        if rng.random() < 0.8:
            inner = region.blocks.append(*[v.type for v in values])
            with ir.InsertionPoint(inner):
                if rng.random() < 0.8:
                    ir.Operation.create("pcp.yield", operands=list(inner.arguments))
    return op


def diagnostics_of(op):
    """The messages of an op that does not verify; none of one that does."""
    try:
        op.verify()
    except ir.MLIRError as error:
        return [d.message for d in error.error_diagnostics] or [""]
    return []


@pytest.mark.parametrize("cls", Pcp.operations, ids=lambda op: op.OPERATION_NAME)
def test_a_verifier_answers_whatever_it_meets(cls):
    rng = random.Random(cls.OPERATION_NAME)
    refused = 0
    with make_context() as context, ir.Location.file("fuzz", 1, 1):
        arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(TYPES))
        module = parse(f"func.func @f({arguments}) {{ return }}", context)
        block = module.body.operations[0].regions[0].blocks[0]
        for _ in range(TRIALS):
            with ir.InsertionPoint.at_block_begin(block):
                op = random_op(rng, cls.OPERATION_NAME, cls._fields, block)
            messages = diagnostics_of(op)
            assert all(messages), str(op)
            refused += bool(messages)
            op.erase()
    assert any(cls.__module__ == family.__name__ for family in FAMILIES)
    if cls.OPERATION_NAME != "pcp.yield":
        assert refused > TRIALS / 4
