"""`pcp.start` and `pcp.wait` as the collectives they hold, where they start.

    %f = "pcp.start"(%g) ({ ... %r = "pcp.all_reduce"(%a) ... yield %r })
    %y = "pcp.wait"(%f)                        becomes       %y = "pcp.all_reduce"(%g)

A lowered collective is asynchronous by itself: it begins where it stands. Where its
result is used the compiler decides, which may run what is ready together with what is
not. `fenced`, each wait leaves a barrier, and the work in front of it is handed to the
device before anything waits:

    %y = stablehlo.optimization_barrier %r
"""

from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, pack, unpack
from pcp.passes.core.rewriting import before, defining, operations, refuse, replace


def synchronize(module: ir.Module, *, fenced: bool = False) -> None:
    """Rewrite every start and wait of `module`; see the module for `fenced`."""
    held: dict[ir.Value, list[ir.Value]] = {}
    found = operations(module)
    starts = [op for op in found if op.name == "pcp.start"]
    waits = [op for op in found if op.name == "pcp.wait"]
    for start in starts:
        held[start.results[0]] = _inline(start)
    for wait in waits:
        values = held.get(wait.operands[0])
        if values is None:
            refuse(wait, "waits for a future that no pcp.start here makes")
        with before(wait):
            replace(wait, pack(_barrier(values) if fenced else values))
    for start in starts:
        if any(True for _ in start.results[0].uses):
            refuse(start, "its future has a use other than pcp.wait")
        start.erase()


def drop_tuples(module: ir.Module) -> None:
    """Remove the tuples in which values of several types were handed on.

    What is left of them would be a value that nobody can compute: an error.
    """
    casts = [op for op in operations(module) if op.name == CAST]
    for cast in casts:
        source = defining(cast.operands[0]) if len(cast.operands) == 1 else None
        whole = [r.type for r in cast.results]
        if source is not None and source.name == CAST:
            if [o.type for o in source.operands] == whole:
                for result, value in zip(cast.results, source.operands, strict=True):
                    result.replace_all_uses_with(value)
    for cast in reversed(casts):
        if any(True for result in cast.results for _ in result.uses):
            refuse(cast, "its tuple comes from no pack of the same types")
        cast.erase()


def _barrier(values: list[ir.Value]) -> list[ir.Value]:
    """The values, behind a point that no work is moved across."""
    op = ir.Operation.create(
        "stablehlo.optimization_barrier",
        operands=values,
        results=[value.type for value in values],
    )
    return list(op.results)


def _inline(start: ir.Operation) -> list[ir.Value]:
    """Clone the region's ops in front of `start`; what it yields."""
    block = start.regions[0].blocks[0]
    with before(start):
        given = unpack(list(start.operands))
        values = dict(zip(block.arguments, given, strict=True))
        for view in block.operations:
            op = view.operation
            if op.name == "pcp.yield":
                return unpack([values.get(o, o) for o in op.operands])
            clone = op.clone()
            for i, operand in enumerate(op.operands):
                clone.operands[i] = values.get(operand, operand)
            values |= zip(op.results, clone.results, strict=True)
    refuse(start, "its region yields nothing")
