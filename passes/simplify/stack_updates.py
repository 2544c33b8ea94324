"""pcp-stack-updates: equal updates of tensors that a loop stacks are one update.

`pcp-roll-layers` makes of equal layers a loop over stacks of their parameters, and the
gradients come as stacks. Each parameter has its own update still, with its own state:
their number grows with depth, and with it what IREE takes to compile them.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting, stacks
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT, is_donated
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.functions import NAME, PARTS, ROLE
from pcp.passes.simplify.components import Body, Values

Row = tuple[str, ...]
"""The names of parameters that are stacked, in order."""


@dataclass(frozen=True)
class StackUpdates(Pass):
    """Stack equal updates of the parameters that `func` stacks.

    Runs behind `pcp-verify-inplace`. An update is what is computed together of one
    parameter, its gradient and its state. Those of a stack become one, on the stacked
    arguments, if each is elementwise and reads of the others' nothing but scalars; its
    results are rows of the new one's. All else that reads one of these arguments reads
    a row. Numbers stay what they were.

    Before, where @grad stacks the parameters a and b:

        func.func @apply(%a: tensor<4xf32>, %ga: tensor<4xf32>,
                         %b: tensor<4xf32>, %gb: tensor<4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %0 = stablehlo.subtract %a, %ga : tensor<4xf32>
          %1 = stablehlo.subtract %b, %gb : tensor<4xf32>
          return %0, %1 : tensor<4xf32>, tensor<4xf32>
        }

    After, where %p and %g stand for the stacks of a with b and of ga with gb:

        func.func @apply(%p: tensor<2x4xf32>, %g: tensor<2x4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %0 = stablehlo.subtract %p, %g : tensor<2x4xf32>
          %1 = stablehlo.slice %0 [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
          %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
          %3 = stablehlo.slice %0 [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
          %4 = stablehlo.reshape %3 : (tensor<1x4xf32>) -> tensor<4xf32>
          return %2, %4 : tensor<4xf32>, tensor<4xf32>
        }
    """

    name = "pcp-stack-updates"
    func: str = "grad"

    def run(self, module: ir.Module) -> None:
        """Stack the updates of every function that only computes."""
        with module.context:
            function = functions.find(module, self.func)
            if function is None or not (found := rows(function)):
                return
            for other in list(rewriting.functions(module)):
                public = functions.is_public(other)
                if public and other != function and PARTS not in other.attributes:
                    stack_updates(other, found)


def rows(function: ir.Operation) -> list[Row]:
    """The names of the parameters that a function stacks."""
    block = functions.entry(function)
    names = _parameters(function)
    by_value = dict(zip(block.arguments, names, strict=True))
    found = []
    for view in block.operations:
        values = stacks.stacked_by(view.operation) or ()
        row = [name for v in values if (name := by_value.get(v))]
        if values and len({*row}) == len(values):
            found.append(tuple(row))
    return found


def _parameters(function: ir.Operation) -> list[str | None]:
    """The name of each argument that is a parameter."""
    return [
        functions.string(said, NAME)
        if functions.string(said, ROLE) == "param"
        else None
        for said in functions.argument_attributes(function)
    ]


def stack_updates(function: ir.Operation, found: Sequence[Row]) -> None:
    """Stack what a function computes of each row of parameters, where that can be."""
    names = _parameters(function)
    arguments = functions.entry(function).arguments
    by_name = {n: a for n, a in zip(names, arguments, strict=True) if n is not None}
    results = len(functions.function_type(function).results)
    wanted = [
        row for row in found if len(row) <= results and all(n in by_name for n in row)
    ]
    if not wanted:
        return
    body = Body(function)
    updates = _by_parameter(body, body.components(), set(by_name.values()))
    stacked: dict[ir.Value, ir.Value] = {}
    for row in wanted:
        each = [updates.get(by_name[name]) for name in row]
        whole = [update for update in each if update is not None]
        if len(whole) == len(row) and (given := _columns(body, whole)) is not None:
            if any(value in stacked for column in given for value in column):
                continue
            _stack(body, whole, given, stacked)
    if stacked:
        rewriting.sweep(function)
        _read_rows(function, stacked)


@dataclass(frozen=True)
class ParameterUpdate:
    """What is computed together: its results, ops by number, and what these read."""

    roots: Values
    ops: list[int]
    given: Values


def _by_parameter(
    body: Body, components: Sequence[Values], parameters: set[ir.Value]
) -> dict[ir.Value, ParameterUpdate]:
    """The updates, by the one parameter that each reads."""
    found: dict[ir.Value, ParameterUpdate] = {}
    for roots in components:
        update = ParameterUpdate(roots, *_in_order(body, roots))
        if len(own := [v for v in update.given if v in parameters]) == 1:
            found[own[0]] = update
    return found


def _in_order(body: Body, roots: Values) -> tuple[list[int], Values]:
    """The ops that make the roots, and what they read of others.

    Each follows what it reads, in the order in which that is read: equal updates have
    one order, wherever their ops stand.
    """
    ops: dict[int, None] = {}
    given: dict[ir.Value, None] = {}
    wanted: list[tuple[ir.Value, bool]] = [(root, False) for root in reversed(roots)]
    while wanted:
        value, ready = wanted.pop()
        number = body.makers.get(value)
        if number is None or value in body.shared:
            given[value] = None
        elif ready:
            ops[number] = None
        elif number not in ops:
            wanted.append((value, True))
            wanted += [(v, False) for v in reversed(body.reads[number])]
    return list(ops), list(given)


def _columns(body: Body, updates: Sequence[ParameterUpdate]) -> list[Values] | None:
    """Of each value that the updates read: which each of them does.

    None if the updates are not the same, or no updates of a stack.
    """
    first, *others = updates
    if any(len(body.places[root]) > 1 for u in updates for root in u.roots):
        return None
    alike = _told(body, first)
    if not all(_stackable(body.ops[n]) for n in first.ops):
        return None
    if any(_told(body, update) != alike for update in others):
        return None
    columns = [[u.given[i] for u in updates] for i in range(len(first.given))]
    inside = {body.ops[n] for update in updates for n in update.ops}
    for column in columns:
        if hlo.shape_of(column[0]) == ():
            if len({*column}) > 1:
                return None
        elif len({*column}) < len(column) or not all(
            _is_free(body, value, inside) for value in column
        ):
            return None
    return columns


def _is_free(body: Body, value: ir.Value, inside: set[ir.Operation]) -> bool:
    """Whether it is an argument that the updates alone read, or that is kept."""
    if value not in body.attributes:
        return False
    readers = {use.owner.operation for use in value.uses}
    return readers <= inside or not is_donated(body.attributes[value])


def _told(body: Body, update: ParameterUpdate) -> Hashable:
    """What an update computes, without what it reads."""
    names: dict[ir.Value, Hashable] = {
        value: (i, value.type, _gives(body, update, value))
        for i, value in enumerate(update.given)
    }
    told: list[Hashable] = []
    for place, number in enumerate(update.ops):
        op = body.ops[number]
        read = tuple(names[value] for value in op.operands)
        said = tuple((name, op.attributes[name]) for name in op.attributes)
        told.append((op.name, read, said, tuple(v.type for v in op.results)))
        names |= {value: (place, i, "made") for i, value in enumerate(op.results)}
    return tuple(told), tuple(names[root] for root in update.roots)


def _gives(body: Body, update: ParameterUpdate, value: ir.Value) -> Hashable:
    """What a value gives its storage for: which of the update's results."""
    said = body.attributes.get(value, {})
    if OUTPUT not in said:
        return CONSUME in said
    result = body.roots[ir.IntegerAttr(said[OUTPUT]).value]
    return update.roots.index(result) if result in update.roots else object()


def _stackable(op: ir.Operation) -> bool:
    """Whether the op does to a stack what it does to each of its rows."""
    if op.name == "stablehlo.constant":
        return ir.DenseElementsAttr(op.attributes["value"]).is_splat
    if op.name == "stablehlo.broadcast_in_dim":
        return hlo.shape_of(op.operands[0]) == ()
    if op.name not in ELEMENTWISE:
        return False
    shape = hlo.shape_of(op.result)
    return shape == () or all(hlo.shape_of(v) in ((), shape) for v in op.operands)


def _stack(
    body: Body,
    updates: Sequence[ParameterUpdate],
    columns: Sequence[Values],
    stacked: dict[ir.Value, ir.Value],
) -> None:
    """Compute the updates as one; `stacked` gets what an argument is stacked in."""
    count, first = len(updates), updates[0]
    values: dict[ir.Value, ir.Value] = {}
    front = body.ops[0]
    for column in columns:
        if hlo.shape_of(column[0]) == ():
            values[column[0]] = column[0]
            continue
        with rewriting.before(front):
            made = stacks.stack(column)
        values[column[0]] = made
        stacked |= dict.fromkeys(column, made)
    with rewriting.before(body.end):
        for number in first.ops:
            op = body.ops[number]
            new = _stacked_op(op, [values[v] for v in op.operands], count)
            values |= dict(zip(op.results, new, strict=True))
        for at, root in enumerate(first.roots):
            for n, update in enumerate(updates):
                row = stacks.row(values[root], n)
                for place in body.places[update.roots[at]]:
                    body.end.operands[place] = row


def _stacked_op(
    op: ir.Operation, operands: Sequence[ir.Value], count: int
) -> Sequence[ir.Value]:
    """The op on stacks of so many rows; one that makes a scalar as it is."""
    new = op.clone()
    for number, value in enumerate(operands):
        new.operands[number] = value
    if hlo.shape_of(op.result) == ():
        return list(new.results)
    shape = (count, *hlo.shape_of(op.result))
    type_ = hlo.tensor(shape, hlo.element_type(op.result))
    new.result.set_type(type_)
    if op.name == "stablehlo.constant":
        one = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
        new.attributes["value"] = ir.DenseElementsAttr.get_splat(type_, one)
    return list(new.results)


def _read_rows(function: ir.Operation, stacked: dict[ir.Value, ir.Value]) -> None:
    """Let all else that reads a stacked argument read its row of the stack."""
    numbers: dict[ir.Value, int] = defaultdict(int)
    ops = [view.operation for view in functions.entry(function).operations]
    last = max(ops.index(made.owner.operation) for made in {*stacked.values()})
    for value, made in stacked.items():
        number, numbers[made] = numbers[made], numbers[made] + 1
        own = made.owner.operation.operands[number].owner.operation
        if any(use.owner.operation != own for use in value.uses):
            with rewriting.before(ops[last + 1]):
                value.replace_all_uses_except(stacks.row(made, number), own)
