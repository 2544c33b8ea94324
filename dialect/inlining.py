"""Calls of functions that hold pcp ops, inlined: MLIR's own pass leaves them."""

from collections.abc import Iterator

from pcp.dialect.bindings import ir

CALL = "func.call"


def inline_annotated(module: ir.Module) -> None:
    """Inline every call of a private function in which a pcp op stands.

    Functions that are called no more go. Assumes one block each and no recursion,
    as StableHLO has it.
    """
    functions = functions_of(module)
    inlined: set[str] = set()
    # Calls inside an inlined body are found in the next round.
    while calls := [
        op
        for op in inside(module.operation)
        if op.name == CALL and _holds_pcp(functions.get(_callee(op)))
    ]:
        for call in calls:
            inlined.add(_callee(call))
            _inline(call, functions[_callee(call)])
    erase_uncalled(module, inlined)


def inline_inside(op: ir.Operation, module: ir.Module, name: str = CALL) -> set[str]:
    """Inline every op `name` in `op`, at any depth; the functions it called."""
    functions = functions_of(module)
    inlined: set[str] = set()
    while calls := [inner for inner in inside(op) if inner.name == name]:
        for call in calls:
            inlined.add(_callee(call))
            _inline(call, functions[_callee(call)])
    return inlined


def erase_uncalled(module: ir.Module, names: set[str]) -> None:
    """Erase those functions that nothing calls."""
    functions = functions_of(module)
    called = {_callee(op) for op in inside(module.operation) if op.name == CALL}
    for name in names - called:
        functions[name].erase()


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Functions by name."""
    return {
        ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
        for view in module.body.operations
        if view.operation.name == "func.func"
    }


def inside(op: ir.Operation) -> Iterator[ir.Operation]:
    """`op` and all operations in it."""
    found: list[ir.Operation] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        found.append(inner.operation)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    yield from found


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _holds_pcp(function: ir.Operation | None) -> bool:
    return function is not None and any(
        op.name.startswith("pcp.") for op in inside(function)
    )


def _inline(call: ir.Operation, function: ir.Operation) -> None:
    block = function.regions[0].blocks[0]
    *body, end = (view.operation for view in block.operations)
    moved = dict(zip(block.arguments, call.operands, strict=True))
    with ir.InsertionPoint(call):
        for op in body:
            copy = op.clone()
            copy.walk(lambda inner: remap(inner, moved))
            moved.update(zip(op.results, copy.results, strict=True))
    for result, value in zip(call.results, end.operands, strict=True):
        result.replace_all_uses_with(moved[value])
    call.erase()


def remap(op: ir.Operation, moved: dict[ir.Value, ir.Value]) -> ir.WalkResult:
    """Let one op read other values; to `walk` a copy with."""
    for i, operand in enumerate(op.operands):
        if operand in moved:
            op.operation.operands[i] = moved[operand]
    return ir.WalkResult.ADVANCE
