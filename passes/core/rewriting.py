"""What every pass that rewrites ops one by one needs: walking, building, refusing.

for op in operations(module):
    if op.name == "stablehlo.dot":
        with before(op):
            replace(op, [hlo.dot_general(...)])
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError

#: Hands its operands on, each as its own result, and lets no compiler move or merge
#: across it.
HOLD = "stablehlo.optimization_barrier"

#: Sum products, over dimensions or windows.
CONTRACTIONS = ("stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general")

#: Hands its operand on; a derivative ends here (see `stops`).
STOP = "pcp.stop_gradient"


def operations(holder: ir.Module | ir.Operation | ir.Region) -> list[ir.Operation]:
    """Every op inside `holder`, outer before inner, as a list safe to rewrite by.

    Erase an op of it only together with nothing else of the list: an op whose
    region holds listed ops must outlive them.
    """
    if isinstance(holder, ir.Region):
        ops = [view.operation for block in holder.blocks for view in block.operations]
        return [found for op in ops for found in (op, *operations(op))]
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    holder.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def captures(op: ir.Operation) -> list[ir.Value]:
    """Values used inside the op's regions and defined outside, in order of use."""
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}
    for region in op.regions:
        _collect(region, inside, found)
    return list(found)


def _collect(
    region: ir.Region, inside: set[ir.Value], found: dict[ir.Value, None]
) -> None:
    for block in region.blocks:
        inside.update(block.arguments)
        for nested in block.operations:
            found.update((v, None) for v in nested.operands if v not in inside)
            for inner in nested.regions:
                _collect(inner, inside, found)
            inside.update(nested.results)


def functions(module: ir.Module | ir.Operation) -> Iterator[ir.Operation]:
    """The functions with a body, in order."""
    for op in list(module.operation.regions[0].blocks[0].operations):
        if op.operation.name == "func.func" and op.regions[0].blocks:
            yield op.operation


def device_modules(module: ir.Module) -> dict[str, ir.Operation]:
    """Each device's program, a module inside of `module`, by the device's name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in _modules(module)
        if "sym_name" in op.attributes
    }


def all_functions(module: ir.Module) -> Iterator[ir.Operation]:
    """The functions of a module, and of those in it."""
    for each in (module, *_modules(module)):
        yield from functions(each)


def _modules(module: ir.Module) -> list[ir.Operation]:
    inner = [view.operation for view in module.body.operations]
    return [op for op in inner if op.name == "builtin.module"]


@contextmanager
def before(op: ir.Operation) -> Iterator[None]:
    """Build in front of `op`, with its location."""
    with ir.InsertionPoint(op), op.location:
        yield


def replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Put `values` in the place of the op's results, and erase it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def splice(
    block: ir.Block, arguments: Sequence[ir.Value], before: ir.Operation
) -> tuple[list[ir.Value], list[ir.Operation]]:
    """Move a block's ops in front of `before`, its arguments replaced.

    Returns what the block's terminator returned, and the ops moved, in order.
    """
    for old, new in zip(block.arguments, arguments, strict=True):
        old.replace_all_uses_with(new)
    *ops, end = [op.operation for op in block.operations]
    for op in ops:
        op.move_before(before)
    return list(end.operands), ops


def refuse(op: ir.Operation, what: str) -> NoReturn:
    """Raise `PassError` as `file:line:col: op: what`."""
    raise PassError(f"{location_string(op.location)}: {op.name}: {what}")


def attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    """All of an op's attributes by name, to make another op with."""
    return {name: op.attributes[name] for name in op.attributes}


def ints(op: ir.Operation, name: str) -> list[int]:
    """An `array<i64>` attribute as a list; `[]` when the op has none."""
    if name not in op.attributes:
        return []
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def integer(op: ir.Operation, name: str) -> int:
    """An integer attribute."""
    return ir.IntegerAttr(op.attributes[name]).value


def defining(value: ir.Value, name: str | None = None) -> ir.Operation | None:
    """The op that makes `value`, if it is one (of that StableHLO name)."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if name is not None and op.name != f"stablehlo.{name}":
        return None
    return op


def has_dynamic_type(op: ir.Operation) -> bool:
    """Whether an operand or result has a dimension or rank known only at run time."""
    values = (*op.operands, *op.results)
    return any(_is_dynamic(value.type) for value in values)


def _is_dynamic(type_: ir.Type) -> bool:
    if isinstance(type_, ir.UnrankedTensorType):
        return True
    return isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape


# Ops whose result may be dropped when nobody reads it. Collectives, calls,
# tokens, infeed, custom calls and foreign ops are kept.
_KEPT_STABLEHLO = frozenset(
    f"stablehlo.{name}"
    for name in (
        "after_all all_gather all_reduce all_to_all async_done async_start "
        "collective_broadcast collective_permute composite custom_call infeed "
        "outfeed recv reduce_scatter return rng_bit_generator send"
    ).split()
)


def is_pure(op: ir.Operation) -> bool:
    """Whether the op, and all in its regions, does nothing but make its results."""
    if op.name == STOP:
        return True
    dialect = op.name.partition(".")[0]
    if dialect not in ("stablehlo", "chlo", "arith") or op.name in _KEPT_STABLEHLO:
        return False
    return all(
        inner.operation.name == "stablehlo.return" or is_pure(inner.operation)
        for region in op.regions
        for block in region.blocks
        for inner in block.operations
    )


def is_unused(op: ir.Operation) -> bool:
    """Whether no result of the op has a use."""
    return not any(True for result in op.results for _ in result.uses)


def sweep(op: ir.Operation) -> int:
    """Erase the pure ops that nobody reads, inside out; returns how many."""
    erased = 0
    for region in op.regions:
        for block in region.blocks:
            for inner in reversed(list(block.operations)):
                if is_unused(inner.operation) and is_pure(inner.operation):
                    inner.operation.erase()
                    erased += 1
                else:
                    erased += sweep(inner.operation)
    return erased
