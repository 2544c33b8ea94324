"""What joins the examples of a batch and is made of data alone: the count of labels.

A mean over the labels that count divides each example's loss by how many there are,
which no microbatch knows by itself. But a stage has the data of all of them: what is
made of data alone need not wait for the last microbatch. It is made of arguments of
its own, the same data as a whole, wherever it is read.
"""

from collections.abc import Iterable

from pcp.dialect import function_body
from pcp.dialect.bindings import ir
from pcp.dialect.inlining import remap
from pcp.passes.core.functions import (
    ROLE,
    argument_attributes,
    entry,
    set_argument_attributes,
    string,
)
from pcp.passes.core.rewriting import is_pure, sweep
from pcp.passes.pipeline.flow import WHOLE, reads
from pcp.passes.sharding.expansions import HINTS
from pcp.passes.sharding.layout import SHARDING, from_attribute
from pcp.passes.sharding.ports import op_shardings, port_shardings

Value = ir.Value


def joins_of_data(function: ir.Operation, axis: str) -> list[int]:
    """The ops made of data alone that read what `axis` cuts and give what it does not.

    Those that something else is made of, by their places among the ops that are no
    hints. `function` says how its tensors lie along `axis`.
    """
    ops, alone = _ops(function), _data(function, axis)
    pure = [place for place, op in enumerate(ops) if _add(alone, op, axis)]
    others = set(range(len(ops))).difference(pure)
    wanted = {value for place in others for value in reads(ops[place])}
    found = []
    for place in reversed(pure):
        op = ops[place]
        if wanted.isdisjoint(op.results):
            continue
        wanted.update(reads(op))
        if any(alone[v] for v in reads(op)) and not alone[op.results[0]]:
            found.append(place)
    return found[::-1]


def _data(function: ir.Operation, axis: str) -> dict[Value, bool]:
    """The arguments that are data, and whether they are cut along `axis`."""
    arguments = entry(function).arguments
    shardings = port_shardings(function, "arg_attrs", len(arguments))
    return {
        argument: axis in from_attribute(sharding).axes
        for argument, said, sharding in zip(
            arguments, argument_attributes(function), shardings, strict=True
        )
        if string(said, ROLE) == "data" and sharding is not None
    }


def _add(alone: dict[Value, bool], op: ir.Operation, axis: str) -> bool:
    """Whether an op is made of these values alone; then its results are added."""
    if not is_pure(op) or not alone.keys() >= set(reads(op)):
        return False
    said = op_shardings(op) if SHARDING in op.attributes else []
    cut = any(axis in from_attribute(sharding).axes for sharding in said)
    alone.update(dict.fromkeys(op.results, cut))
    return True


def take_whole(function: ir.Operation, places: Iterable[int]) -> list[int]:
    """Make the ops at `places` of arguments of their own, of the role `WHOLE`.

    These stand behind the others; returns the argument that each is the same as.
    """
    ops = _ops(function)
    joins = [ops[place] for place in places]
    behind = _behind(joins)
    arguments = list(entry(function).arguments)
    sources = [k for k, argument in enumerate(arguments) if argument in behind]
    made = dict(
        zip(
            [arguments[k] for k in sources],
            _repeated(function, sources),
            strict=True,
        )
    )
    for op in entry(function).operations:
        if any(result in behind for result in op.results):
            with ir.InsertionPoint(op):
                copy = op.operation.clone()
            copy.operation.walk(lambda inner: remap(inner, made))
            made.update(zip(op.results, copy.results, strict=True))
    for op in joins:
        for result in op.results:
            result.replace_all_uses_with(made[result])
    sweep(function)
    return sources


def _ops(function: ir.Operation) -> list[ir.Operation]:
    """The ops of a function's body, but for hints and the terminator."""
    *ops, _ = (view.operation for view in entry(function).operations)
    return [op for op in ops if op.name not in HINTS]


def _behind(ops: Iterable[ir.Operation]) -> set[Value]:
    """The results of these ops, and all that they are made of."""
    found: set[Value] = set()
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        found.update(op.results)
        for value in reads(op):
            if value not in found:
                found.add(value)
                if not isinstance(value.owner, ir.Block):
                    waiting.append(value.owner.operation)
    return found


def _repeated(function: ir.Operation, places: Iterable[int]) -> list[Value]:
    """New arguments, the same as those at `places` but for their role."""
    said = argument_attributes(function)
    block, made = entry(function), []
    for k in places:
        old = block.arguments[k]
        made.append(block.add_argument(old.type, old.location))
        said.append(said[k] | {ROLE: ir.StringAttr.get(WHOLE)})
    function_body.retype(function)
    set_argument_attributes(function, said)
    return made
