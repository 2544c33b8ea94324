"""pcp-stack-arguments: what a function stacks, or takes apart, is so outside of it.

A loop over equal layers reads stacks of parameters and makes stacks of their gradients
(`pcp-roll-layers`), and so do their updates (`pcp-stack-updates`). The tensors have
names and stay apart for all that calls the functions. But their number grows with
depth, and IREE takes longer for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect import function_body, hlo
from pcp.dialect.base import symbol
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting, stacks
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT
from pcp.passes.core.functions import PART, PARTS

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class StackArguments(Pass):
    """Move stacks of arguments, and results that are rows, out of functions.

    A stack moves if all that reads its arguments is that they are stacked, and all rows
    of a result's stack are results. An argument that gives its storage to a result goes
    only together with it. What calls the function, or stands for it from now on, is a
    function marked `pcp.parts`: it calls, stacks and takes rows, and does no more. The
    runtime does so without copies where the rows are those of one tensor already.

    Before:

        func.func @f(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32> {
          %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<1x4xf32>
          %1 = stablehlo.reshape %b : (tensor<4xf32>) -> tensor<1x4xf32>
          %2 = stablehlo.concatenate %0, %1, dim = 0
              : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
          %3 = stablehlo.negate %2 : tensor<2x4xf32>
          return %3 : tensor<2x4xf32>
        }

    After:

        func.func @f_part0(%ab: tensor<2x4xf32>) -> tensor<2x4xf32>
            attributes {pcp.part} {
          %0 = stablehlo.negate %ab : tensor<2x4xf32>
          return %0 : tensor<2x4xf32>
        }
        func.func @f(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32>
            attributes {pcp.parts} {
          %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<1x4xf32>
          %1 = stablehlo.reshape %b : (tensor<4xf32>) -> tensor<1x4xf32>
          %2 = stablehlo.concatenate %0, %1, dim = 0
              : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
          %3 = call @f_part0(%2) : (tensor<2x4xf32>) -> tensor<2x4xf32>
          return %3 : tensor<2x4xf32>
        }
    """

    name = "pcp-stack-arguments"

    def run(self, module: ir.Module) -> None:
        """Move the stacks of every function that a caller or a part may be."""
        with module.context:
            for function in list(rewriting.functions(module)):
                if PARTS in function.attributes or not _is_called(function):
                    continue
                border = StackedBorder.of(function)
                if border.stacks or border.rows:
                    _move(module, function, border)
            _flatten(module)


def _is_called(function: ir.Operation) -> bool:
    return functions.is_public(function) or PART in function.attributes


@dataclass
class StackedBorder:
    """What is stacked at a function's border.

    stacks: arguments, by number, and their concatenation. rows: results, by number, and
    the tensor whose rows they are.
    """

    stacks: dict[Numbers, ir.Operation] = field(default_factory=dict)
    rows: dict[Numbers, ir.Value] = field(default_factory=dict)

    @classmethod
    def of(cls, function: ir.Operation) -> "StackedBorder":
        """The border of a function as its body has it."""
        block = functions.entry(function)
        numbers = {argument: i for i, argument in enumerate(block.arguments)}
        border = cls()
        for view in block.operations:
            values = stacks.stacked_by(view.operation) or ()
            own = [v in numbers and _only_stacked(v, view.operation) for v in values]
            if values and all(own) and len(set(values)) == len(values):
                border.stacks[tuple(numbers[v] for v in values)] = view.operation
        border.rows = _rows(function)
        while border._drop_divided(functions.argument_attributes(function)):
            pass
        return border

    def _drop_divided(self, said: Sequence[dict[str, ir.Attribute]]) -> bool:
        """Leave out one whose storage goes elsewhere; whether there was one."""
        given = {
            i: ir.IntegerAttr(attributes[OUTPUT]).value
            for i, attributes in enumerate(said)
            if OUTPUT in attributes
        }
        for numbers in self.stacks:
            alike = len({CONSUME in said[i] for i in numbers}) == 1
            taken = tuple(given.get(i, -1) for i in numbers)
            if not alike or (set(taken) != {-1} and taken not in self.rows):
                del self.stacks[numbers]
                return True
        givers = {result: i for i, result in given.items()}
        for numbers in self.rows:
            from_ = tuple(givers.get(result, -1) for result in numbers)
            if set(from_) != {-1} and from_ not in self.stacks:
                del self.rows[numbers]
                return True
        return False


def _only_stacked(value: ir.Value, concatenation: ir.Operation) -> bool:
    """Whether nothing else reads a value."""
    readers = [use.owner.operation for use in value.uses]
    return all(
        reader.name == stacks.RESHAPE
        and all(use.owner.operation == concatenation for use in reader.result.uses)
        for reader in readers
    )


def _rows(function: ir.Operation) -> dict[Numbers, ir.Value]:
    """The results that are all rows of a tensor, each once; by number, in order."""
    end = functions.entry(function).operations[-1].operation
    found: dict[ir.Value, dict[int, int]] = {}
    twice: set[ir.Value] = set()
    for number, value in enumerate(end.operands):
        if (place := stacks.row_of(value)) is not None:
            held = found.setdefault(place[0], {})
            if place[1] in held:
                twice.add(place[0])
            held[place[1]] = number
    return {
        tuple(held[i] for i in range(len(held))): stacked
        for stacked, held in found.items()
        if stacked not in twice and len(held) == hlo.shape_of(stacked)[0] > 1
    }


def _move(module: ir.Module, function: ir.Operation, border: StackedBorder) -> None:
    """Stack the function's border, and do it as its callers did so far."""
    name = functions.symbol_name(function)
    attributes = {n: function.attributes[n] for n in function.attributes}
    old = functions.function_type(function)
    inputs = list(old.inputs)
    _stack_border(function, border)
    if PART in function.attributes:
        for holder in rewriting.functions(module):
            if PARTS in holder.attributes:
                _call_by_stacks(holder, name, function, border)
        return
    callee = f"{name}_part0"
    function.attributes["sym_name"] = ir.StringAttr.get(callee)
    function.attributes[PART] = ir.UnitAttr.get()
    with rewriting.before(function):
        whole, block = function_body.begin(attributes, inputs)
        with ir.InsertionPoint(block):
            results = _called(callee, function, border, list(block.arguments))
        function_body.finish(whole, results)
    whole.attributes[PARTS] = ir.UnitAttr.get()


def _stack_border(function: ir.Operation, border: StackedBorder) -> None:
    """Make the stacks arguments and results of the function, behind the others."""
    block = functions.entry(function)
    said = functions.argument_attributes(function)
    end = block.operations[-1].operation
    order = [*_others(len(end.operands), border.rows), *border.rows]
    place = {key: i for i, key in enumerate(order)}
    where: dict[int, int] = {i: n for i, n in place.items() if isinstance(i, int)}
    marks = []
    for i in _others(len(said), border.stacks):
        marks.append(_moved(said[i], where))
    for numbers, concatenation in border.stacks.items():
        stacked = block.add_argument(concatenation.result.type, concatenation.location)
        first = said[numbers[0]]
        own = {CONSUME: first[CONSUME]} if CONSUME in first else {}
        if OUTPUT in first:
            taken = tuple(ir.IntegerAttr(said[i][OUTPUT]).value for i in numbers)
            own[OUTPUT] = ir.IntegerAttr.get(ir.IndexType.get(), place[taken])
        marks.append(own)
        rows = [operand.owner.operation for operand in concatenation.operands]
        rewriting.replace(concatenation, [stacked])
        for op in dict.fromkeys(rows):
            op.erase()
    given = {i for numbers in border.stacks for i in numbers}
    for i in sorted(given, reverse=True):
        block.erase_argument(i)
    values = [
        border.rows[key] if isinstance(key, tuple) else end.operands[key]
        for key in order
    ]
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]
    function_body.finish(function, values)
    functions.set_argument_attributes(function, marks)
    rewriting.sweep(function)


def _moved(
    said: dict[str, ir.Attribute], where: dict[int, int]
) -> dict[str, ir.Attribute]:
    """The marks of an argument whose result has another number now."""
    own = {mark: said[mark] for mark in (CONSUME, OUTPUT) if mark in said}
    if OUTPUT in own:
        result = where[ir.IntegerAttr(own[OUTPUT]).value]
        own[OUTPUT] = ir.IntegerAttr.get(ir.IndexType.get(), result)
    return own


def _others(count: int, stacked: dict[Numbers, object]) -> list[int]:
    """The numbers below `count` that are in no stack."""
    inside = {i for numbers in stacked for i in numbers}
    return [i for i in range(count) if i not in inside]


def _called(
    callee: str,
    function: ir.Operation,
    border: StackedBorder,
    given: Sequence[ir.Value],
) -> list[ir.Value]:
    """The results of a call by stacks, as a call without them has them."""
    operands = [given[i] for i in _others(len(given), border.stacks)]
    operands += [stacks.stack([given[i] for i in each]) for each in border.stacks]
    types = list(functions.function_type(function).results)
    made = list(functions.call(callee, operands, types))
    whole = len(made) - len(border.rows)
    count = whole + sum(map(len, border.rows))
    others = _others(count, border.rows)
    values = dict(zip(others, made[:whole], strict=True))
    for numbers, stacked in zip(border.rows, made[whole:], strict=True):
        values |= {i: stacks.row(stacked, n) for n, i in enumerate(numbers)}
    return [values[i] for i in range(count)]


def _call_by_stacks(
    holder: ir.Operation, name: str, function: ir.Operation, border: StackedBorder
) -> None:
    """Replace the calls of a part in a function that calls parts."""
    for view in list(functions.entry(holder).operations):
        op = view.operation
        if op.name == "func.call" and symbol(op, "callee") == name:
            with rewriting.before(op):
                made = _called(name, function, border, list(op.operands))
            rewriting.replace(op, made)


def _flatten(module: ir.Module) -> None:
    """Let no function of parts call one that is itself one of parts."""
    for holder in rewriting.functions(module):
        if PARTS not in holder.attributes:
            continue
        for view in list(functions.entry(holder).operations):
            op = view.operation
            if op.name != "func.call":
                continue
            callee = functions.find(module, symbol(op, "callee"))
            if callee is not None and PARTS in callee.attributes:
                rewriting.replace(op, _copied(callee, op))


def _copied(callee: ir.Operation, call: ir.Operation) -> list[ir.Value]:
    """The callee's ops in front of a call of it; what they return."""
    block = functions.entry(callee)
    values = dict(zip(block.arguments, call.operands, strict=True))
    *ops, end = [view.operation for view in block.operations]
    with rewriting.before(call):
        for op in ops:
            new = op.clone()
            for number, operand in enumerate(list(new.operands)):
                new.operands[number] = values[operand]
            values |= dict(zip(op.results, new.results, strict=True))
    return [values[value] for value in end.operands]
