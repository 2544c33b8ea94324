"""What a `stablehlo.while` says about itself: carries, counter, trip count."""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.walk import block_of

Value = ir.Value


@dataclass(frozen=True)
class Counter:
    """Carry `index` runs start, start+step, ... for `trips` iterations."""

    index: int
    start: int
    step: int
    trips: int


def returned(block: ir.Block) -> list[Value]:
    """The operands of a block's terminator."""
    *_, end = block.operations
    return list(end.operands)


def invariant(loop: ir.Operation) -> list[bool]:
    """Which carries the body hands on as they are."""
    body = block_of(loop, 1)
    return [a == r for a, r in zip(body.arguments, returned(body), strict=True)]


def known_integer(value: Value) -> int | None:
    """An integer scalar's value if it is a constant, also through invariant carries."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        loop = owner.owner
        if loop.name != "stablehlo.while":
            return None
        index = ir.BlockArgument(value).arg_number
        if not invariant(loop.operation)[index]:
            return None
        return known_integer(loop.operands[index])
    if owner.name in ("stablehlo.convert", "stablehlo.reshape"):
        return known_integer(owner.operands[0])
    if owner.name not in ("stablehlo.constant", "arith.constant"):
        return None
    attribute = owner.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or len(attribute) != 1:
        return None
    return int(attribute[0])


def counter(loop: ir.Operation) -> Counter | None:
    """The carry that decides when the loop ends, if its course is static."""
    condition = block_of(loop, 0)
    compare = returned(condition)[0].owner
    if isinstance(compare, ir.Block) or compare.name != "stablehlo.compare":
        return None
    direction = _direction(compare)
    for side, other in ((0, 1), (1, 0)):
        index = _argument(compare.operands[side], condition)
        bound = known_integer(compare.operands[other])
        if index is None or bound is None:
            continue
        flipped = direction if side == 0 else _FLIPPED[direction]
        if (found := _course(loop, index, flipped, bound)) is not None:
            return found
    return None


def trips(loop: ir.Operation) -> int:
    """How often the body runs; once where only the run can tell."""
    found = counter(loop)
    return 1 if found is None else found.trips


def repeats(op: ir.Operation) -> int:
    """How often an op runs in a call of its function: the trips of the loops around."""
    around, count = op.parent, 1
    while around is not None and around.name != "func.func":
        if around.name == "stablehlo.while":
            count *= trips(around.operation)
        around = around.operation.parent
    return count


_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


def _direction(compare: ir.Operation) -> str:
    text = str(compare.attributes["comparison_direction"])
    return text.rstrip(">").split()[-1].split("<")[-1]


def _argument(value: Value, block: ir.Block) -> int | None:
    if isinstance(value.owner, ir.Block) and value.owner == block:
        return ir.BlockArgument(value).arg_number
    return None


def _course(
    loop: ir.Operation, index: int, direction: str, bound: int
) -> Counter | None:
    start = known_integer(loop.operands[index])
    step = _step(loop, index)
    if start is None or not step:
        return None
    trips = _trips(start, step, direction, bound)
    return None if trips is None else Counter(index, start, step, trips)


def _step(loop: ir.Operation, index: int) -> int | None:
    """What the body adds to the carry, if that is a constant."""
    body = block_of(loop, 1)
    update = returned(body)[index].owner
    if isinstance(update, ir.Block):
        return None
    sign = {"stablehlo.add": 1, "stablehlo.subtract": -1}.get(update.name)
    if sign is None:
        return None
    left, right = update.operands
    if _argument(left, body) == index:
        amount = known_integer(right)
    elif sign == 1 and _argument(right, body) == index:
        amount = known_integer(left)
    else:
        return None
    return None if amount is None else sign * amount


def _trips(start: int, step: int, direction: str, bound: int) -> int | None:
    """How many of start, start+step, ... pass the test; None if it never fails."""
    span = {"LT": bound - start, "LE": bound - start + 1}.get(direction)
    if span is not None:
        return max(0, -(-span // step)) if step > 0 or span <= 0 else None
    span = {"GT": start - bound, "GE": start - bound + 1}.get(direction)
    if span is not None:
        return max(0, -(-span // -step)) if step < 0 or span <= 0 else None
    if direction == "NE" and (bound - start) % step == 0:
        trips = (bound - start) // step
        return trips if trips >= 0 else None
    return None


def is_scalar_integer(value: Value) -> bool:
    """A rank-0 integer tensor."""
    element = hlo.element_type(value)
    return isinstance(element, ir.IntegerType) and not hlo.shape_of(value)
