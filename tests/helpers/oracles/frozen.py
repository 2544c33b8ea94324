"""What a stop means, without a derivative: its value is that at another point.

`frozen` makes of f(x) a program f(x, s) that computes all values twice, from x and from
s, side by side, and takes what is stopped from s. As a function of x alone, at s = x,
it has the values of f and the derivative that f is to have; a difference finds it.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import STOP, captures, functions

Values = dict[ir.Value, ir.Value]


def frozen(text: str) -> str:
    """The text of `@main(x, s)` for a `@main(x)`."""
    module = parse(text)
    (main,) = functions(module)
    old = main.regions[0].blocks[0]
    types = [a.type for a in old.arguments]
    with module.context, ir.Location.unknown(module.context):
        with ir.InsertionPoint(module.body):
            new = ir.Operation.create("func.func", regions=1)
        block = new.regions[0].blocks.append(
            *types, *types, arg_locs=[ir.Location.unknown()] * (2 * len(types))
        )
        given = list(block.arguments)
        with ir.InsertionPoint(block):
            found, _ = _both(old, given[: len(types)], given[len(types) :], {}, {})
            ir.Operation.create("func.return", operands=found)
        results = [value.type for value in found]
        new.attributes["sym_name"] = ir.StringAttr.get("main")
        new.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([*types, *types], results)
        )
    main.erase()
    return str(module)


def _both(
    block: ir.Block,
    here: Sequence[ir.Value],
    there: Sequence[ir.Value],
    outer: Values,
    other: Values,
) -> tuple[list[ir.Value], list[ir.Value]]:
    """A block's ops in both programs; what it returns in either."""
    x = outer | dict(zip(block.arguments, here, strict=True))
    s = other | dict(zip(block.arguments, there, strict=True))
    *ops, end = [view.operation for view in block.operations]
    for op in ops:
        for results, values in zip(_twice(op, x, s), (x, s), strict=True):
            values.update(zip(op.results, results, strict=True))
    return [x[v] for v in end.operands], [s[v] for v in end.operands]


def _twice(op: ir.Operation, x: Values, s: Values) -> Sequence[Sequence[ir.Value]]:
    here, there = ([values[v] for v in op.operands] for values in (x, s))
    if op.name == STOP:
        return there, there
    if op.name == "stablehlo.while":
        return _halves(_loop(op, here, there, x, s))
    if op.name in ("stablehlo.case", "stablehlo.if"):
        return _halves(_branches(op, there, x, s))
    return [list(_copied(op, values).results) for values in (x, s)]


def _halves(op: ir.Operation) -> Sequence[Sequence[ir.Value]]:
    results = list(op.results)
    return results[: len(results) // 2], results[len(results) // 2 :]


def _copied(op: ir.Operation, values: Values) -> ir.Operation:
    """A copy, bodies included, with the operands and captures of one program."""
    outside = [v for v in captures(op) if v in values]
    copy = op.clone()
    for i, operand in enumerate(op.operands):
        copy.operands[i] = values[operand]
    for value in outside:
        _exchange(copy, value, values[value])
    return copy


def _exchange(op: ir.Operation, old: ir.Value, new: ir.Value) -> None:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                for i, operand in enumerate(inner.operands):
                    if operand == old:
                        inner.operation.operands[i] = new
                _exchange(inner.operation, old, new)


def _loop(
    op: ir.Operation,
    here: Sequence[ir.Value],
    there: Sequence[ir.Value],
    x: Values,
    s: Values,
) -> ir.Operation:
    """Both carries side by side; the second says when it ends."""
    types = [v.type for v in [*here, *there]]
    count = len(here)
    made = hlo.op("while", [*here, *there], types, regions=2)
    again, step = (region.blocks[0] for region in op.regions)

    def on(*carries: ir.Value) -> ir.Value:
        both = carries[:count], carries[count:]
        return _both(again, *both, x, s)[1][0]

    def round_(*carries: ir.Value) -> list[ir.Value]:
        found = _both(step, carries[:count], carries[count:], x, s)
        return [*found[0], *found[1]]

    hlo.body(made, types, on)
    hlo.body(made, types, round_, region=1)
    return made


def _branches(
    op: ir.Operation, index: Sequence[ir.Value], x: Values, s: Values
) -> ir.Operation:
    """Both programs take the way of the second."""
    types = [r.type for r in op.results]
    made = hlo.op(op.name, list(index), [*types, *types], regions=len(list(op.regions)))
    for i, region in enumerate(op.regions):
        block = region.blocks[0]

        def way(block: ir.Block = block) -> list[ir.Value]:
            found = _both(block, [], [], x, s)
            return [*found[0], *found[1]]

        hlo.body(made, [], way, region=i)
    return made
