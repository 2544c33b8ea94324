"""The dialect in several contexts, loaded again, interleaved, and let go."""

import gc
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from pcp.dialect import collectives, description
from pcp.dialect.attributes import Axis
from pcp.dialect.base import Pcp
from pcp.dialect.bindings import ir
from pcp.dialect.context import UPSTREAM, make_context, parse
from pcp.dialect.loading import load
from pcp.errors import IRError

MESH = (
    '"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}'
    " : () -> ()"
)
BAD_MESH = MESH.replace("2>", "0>")


def test_loading_again_does_nothing():
    context = make_context()
    for _ in range(3):
        load(context)
    assert isinstance(parse(MESH, context).body.operations[0], description.Mesh)


def test_loading_into_a_bare_context_makes_the_ops_known():
    context = ir.Context()
    load(context)
    op = parse(MESH, context).body.operations[0]
    assert isinstance(op.axes[0], Axis)


def test_live_contexts_can_be_used_in_turn():
    contexts = [make_context() for _ in range(5)]
    for context in contexts * 3:
        op = parse(MESH, context).body.operations[0]
        assert type(op) is description.Mesh
        assert type(op.axes[0]) is Axis
        with pytest.raises(IRError, match=r'axis "dp" has size 0'):
            parse(BAD_MESH, context)


def test_threads_can_make_contexts_at_once():
    def work(_):
        return str(parse(MESH, make_context()))

    with ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(work, range(64), timeout=60))
    assert len(texts) == 1


def test_a_context_dies_with_its_last_user():
    gc.collect()
    before = ir.Context._get_live_count()
    for _ in range(20):
        parse(MESH, make_context())
    gc.collect()
    assert ir.Context._get_live_count() <= before + 1


def test_an_error_in_a_verifier_leaves_the_context_usable():
    context = make_context()
    for _ in range(100):
        with pytest.raises(IRError):
            parse(BAD_MESH, context)
    parse(MESH, context)


def test_every_op_of_the_dialect_has_a_verifier_and_a_docstring():
    assert len(Pcp.operations) >= 27
    for op in Pcp.operations:
        assert callable(op.verify_invariants), op
        assert op.__doc__, op
        assert op.OPERATION_NAME in op.__doc__, f"{op}: no example in its docstring"


@pytest.mark.parametrize("op", Pcp.operations, ids=lambda op: op.OPERATION_NAME)
def test_the_example_in_a_docstring_parses(op):
    """Operands of an example are made up: unknown names become arguments."""
    lines = op.__doc__.splitlines()
    first = next(i for i, line in enumerate(lines) if "%" in line or '"pcp.' in line)
    example = "\n".join(lines[first:])
    defined = set(re.findall(r"(%\w+)(?:, (%\w+))* =", example))
    names = {name for group in defined for name in group if name}
    names |= set(re.findall(r"(%\w+)(?=:)", example))
    used = [n for n in dict.fromkeys(re.findall(r"%\w+", example)) if n not in names]
    if op.OPERATION_NAME == "pcp.yield":
        return  # it has no place of its own
    types = _operand_types(example, used)
    args = ", ".join(f"{n}: {t}" for n, t in zip(used, types, strict=True))
    module = parse(f"func.func @f({args}) {{\n{example}\nreturn }}")
    body = module.body.operations[0].regions[0].blocks[0].operations
    assert op.OPERATION_NAME in {o.operation.name for o in body}


def _operand_types(example: str, used: list[str]) -> list[str]:
    """The operand types in the op's trailing `: (types) -> ...`."""
    if not used:
        return []
    tail = example.rsplit("}", 1)[-1] if "}" in example else example
    inside = tail[tail.index("(", tail.index(":")) + 1 :]
    depth, current, types = 0, "", []
    for char in inside:
        if char == ")" and depth == 0:
            break
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            types.append(current)
            current = ""
        else:
            current += char
    return [*types, current][: len(used)]


def test_builders_make_what_the_parser_reads():
    context = make_context()
    with context, ir.Location.unknown():
        module = parse("func.func @f(%x: tensor<8x4xf32>) { return }", context)
        block = module.body.operations[0].regions[0].blocks[0]
        part = ir.Type.parse("tensor<4x4xf32>")
        group = {"mesh": "m", "axes": ["dp"]}
        with ir.InsertionPoint.at_block_begin(block):
            x = block.arguments[0]
            made = [
                collectives.all_reduce(x, **group),
                collectives.reduce_scatter(x, part, **group, dim=0, kind="max"),
                collectives.all_gather(x, x.type, **group, dim=0, sizes=[8]),
                collectives.all_to_all(x, x.type, **group, split=0, concat=0),
                collectives.broadcast(x, **group, root=1),
                collectives.permute(x, **group, pairs=[(0, 1), (1, 0)]),
                collectives.all_reduce(x, **group, wire=ir.TypeAttr.parse("bf16")),
            ]
            collectives.sync(**group)
    module.operation.verify()
    assert parse(str(module), context).operation.verify()
    assert [v.owner.name for v in made[:3]] == [
        "pcp.all_reduce",
        "pcp.reduce_scatter",
        "pcp.all_gather",
    ]


def test_ops_of_upstream_are_known_before_a_text_has_them():
    """Passes build ops of these dialects; those of others come with a text alone."""
    context = make_context()
    assert all(context.is_dialect_loaded(name) for name in UPSTREAM)
    assert not context.is_dialect_loaded("shape")
    text = "func.func @f(%a: !shape.shape) -> !shape.shape { return %a : !shape.shape }"
    parse(text, context)
    assert context.is_dialect_loaded("shape")
