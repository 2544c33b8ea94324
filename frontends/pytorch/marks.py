"""Ops of our own in a traced PyTorch program, past a compiler that knows neither.

    pcp::stop_gradient(Tensor x) -> Tensor       x; no gradient flows
    pcp::call(Tensor[] operands, Tensor[] like, int call) -> Tensor[]
                                                 a call that has a derivative rule
    pcp::uniform(int[] shape, int number) -> Tensor
                                                 random numbers (`pytorch.random`)

torch-mlir would refuse them. So `cut` takes them out before it sees the program: what
a mark gives becomes an argument of `@main`, what it takes a result. Nothing between
can lose, merge or move one, since it would change the function's type; `join` counts
them and puts ops of the `pcp` dialect in their places.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from operator import getitem
from typing import Any

import numpy as np

from pcp.dialect import function_body, hlo, threefry
from pcp.dialect.bindings import ir
from pcp.errors import IRError
from pcp.frontends.constants import dense
from pcp.frontends.pytorch.constants import constants
from pcp.frontends.pytorch.places import here, place, refuse
from pcp.frontends.signature import entry


@dataclass(frozen=True)
class Mark:
    """One op that was cut out: its arity, its line, and what it is.

    A call has its number, a constant its value (an array, or a number for all of it),
    random numbers the ordinal of their op; what has none of these is a stop.
    """

    operands: int
    results: int
    place: str
    call: int | None = None
    constant: Any = None
    draw: int | None = None


#: The ops of a call that take its place: from operands to results.
Build = Callable[[int, Sequence[ir.Value]], Sequence[ir.Value]]


#: A library of torch's takes its ops along when it goes.
_alive: list[Any] = []


@cache
def ops() -> Any:
    """`torch.ops.pcp`, defined at the first use.

    torch itself differentiates a call only if the model asks for a gradient inside
    of `forward`, by which time the rule is not known.
    """
    import torch

    library = torch.library.Library("pcp", "DEF")
    library.define("stop_gradient(Tensor x) -> Tensor")
    library.define("call(Tensor[] operands, Tensor[] like, int call) -> Tensor[]")
    library.define("uniform(int[] shape, int number) -> Tensor")
    fake = torch.library.register_fake
    fake("pcp::stop_gradient", torch.empty_like, lib=library)
    fake("pcp::call", lambda _, like, call: [*map(torch.empty_like, like)], lib=library)
    fake("pcp::uniform", lambda shape, _: torch.empty(shape), lib=library)
    torch.library.register_vmap("pcp::stop_gradient", _map_stop, lib=library)
    torch.library.register_autograd("pcp::call", _refuse_inside, lib=library)
    _alive.append(library)
    return torch.ops.pcp


def _map_stop(_: Any, in_dims: tuple[Any], x: Any) -> tuple[Any, Any]:
    return ops().stop_gradient(x), in_dims[0]


def _refuse_inside(*_: Any) -> Any:
    raise refuse(
        here(),
        "torch.autograd.grad in forward goes through an autograd.Function; write that "
        "gradient out, or the function without a rule of its own",
    )


def cut(program: Any) -> list[Mark]:
    """Take the marks out of an exported program without mutation, in order."""
    graph = program.graph
    graph.eliminate_dead_code()
    marks = [_cut_constant(program, *found) for found in constants(program)]
    marks += [_cut_draw(program, node, i) for i, node in enumerate(list(_draws(graph)))]
    marks += [_cut_one(program, node) for node in list(_marks(graph))]
    graph.eliminate_dead_code()  # what only `like` needed
    program.graph_module.recompile()
    return marks


def _cut_constant(program: Any, node: Any, value: Any) -> Mark:
    _become_argument(program, node)
    return Mark(0, 1, place(node), constant=value)


def _cut_draw(program: Any, node: Any, ordinal: int) -> Mark:
    where = place(node)
    _become_argument(program, node)
    return Mark(0, 1, where, draw=ordinal)


def _draws(graph: Any) -> Iterator[Any]:
    return (n for n in graph.nodes if n.target is ops().uniform.default)


def _marks(graph: Any) -> Iterator[Any]:
    known = (ops().stop_gradient.default, ops().call.default)
    return (node for node in graph.nodes if node.target in known)


def _cut_one(program: Any, node: Any) -> Mark:
    if node.target is ops().stop_gradient.default:
        operands, results, call = [node.args[0]], [node], None
    else:
        operands, _, call = node.args
        results = [_result(node, i) for i in range(len(node.meta["val"]))]
    for result in results:
        _become_argument(program, result)
    for operand in operands:
        _become_result(program, operand)
    if call is not None:
        program.graph.erase_node(node)
    return Mark(len(operands), len(results), place(node), call=call)


def _result(node: Any, i: int) -> Any:
    """The node that takes result `i` of a call."""
    for user in node.users:
        if user.target is getitem and user.args[1] == i:
            return user
    with node.graph.inserting_after(node):
        taken = node.graph.call_function(getitem, (node, i))
    taken.meta = {"val": node.meta["val"][i]}
    return taken


def _become_argument(program: Any, node: Any) -> None:
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    *_, last = (n for n in program.graph.nodes if n.op == "placeholder")
    with program.graph.inserting_after(last):
        argument = program.graph.placeholder(f"mark_{node.name}")
    argument.meta = copy(node.meta)
    node.replace_all_uses_with(argument)
    program.graph.erase_node(node)
    spec = InputSpec(InputKind.USER_INPUT, TensorArgument(argument.name), None)
    program.graph_signature.input_specs.append(spec)


def _become_result(program: Any, node: Any) -> None:
    from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

    (output,) = program.graph.find_nodes(op="output")
    output.args = ((*output.args[0], node),)
    spec = OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
    program.graph_signature.output_specs.append(spec)


def join(module: ir.Module, marks: Sequence[Mark], build: Build) -> None:
    """Put ops in the place of the arguments and results that `cut` made of `marks`."""
    function = entry(module)
    block = function.regions[0].blocks[0]
    end = [view.operation for view in block.operations][-1]
    taken = sum(mark.operands for mark in marks)
    given = sum(mark.results for mark in marks)
    results = len(end.operands) - taken
    first = len(block.arguments) - given
    if results < 0 or first < 0:
        raise IRError(f"torch-mlir lost some of {len(marks)} gradient marks")
    with module.context:
        key = _add_key(function) if draws(marks) else None
        makes = _Makes(build, key)
        _join_all(block, marks, makes, first, list(end.operands)[results:])
        _shorten(function, range(first, first + given), results)


def draws(marks: Sequence[Mark]) -> list[Mark]:
    """Those that draw random numbers; the last argument is their key."""
    return [mark for mark in marks if mark.draw is not None]


def _add_key(function: ir.Operation) -> threefry.Words:
    """The key's words, of an argument behind all others."""
    block = function.regions[0].blocks[0]
    unsigned = ir.IntegerType.get_unsigned(32)
    with function.location, ir.InsertionPoint.at_block_begin(block):
        key = block.add_argument(hlo.tensor((2,), unsigned), function.location)
        return threefry.key_words(key)


@dataclass(frozen=True)
class _Makes:
    """What takes the place of marks: calls by their rules, draws by the key."""

    call: Build
    key: threefry.Words | None


def _join_all(
    block: ir.Block,
    marks: Sequence[Mark],
    makes: _Makes,
    first: int,
    operands: list[ir.Value],
) -> None:
    arguments = list(block.arguments)[first:]
    for mark in marks:
        takes, operands = operands[: mark.operands], operands[mark.operands :]
        gives, arguments = arguments[: mark.results], arguments[mark.results :]
        # The operand may be what an earlier mark gave: read it now, not before.
        needs = makes.key if mark.draw is not None and makes.key else takes
        with _behind(block, needs), _location(mark.place):
            values = _build(mark, makes, takes, [value.type for value in gives])
        for old, new in zip(gives, values, strict=True):
            if old.type != new.type:
                raise IRError(f"{mark.place}: gives {new.type} for {old.type}")
            operands = [new if operand == old else operand for operand in operands]
            old.replace_all_uses_with(new)


def _build(
    mark: Mark, makes: _Makes, takes: list[ir.Value], types: list[ir.Type]
) -> Sequence[ir.Value]:
    if mark.call is not None:
        return makes.call(mark.call, takes)
    if mark.draw is not None and makes.key is not None:
        own = threefry.fold_in(makes.key, mark.draw)
        return [threefry.uniform(own, hlo.shape_of(types[0]))]
    if isinstance(mark.constant, np.ndarray):
        return [dense(mark.constant, *types)]
    if mark.constant is not None:
        return [hlo.constant(mark.constant, *types)]
    (value,) = takes
    stop = ir.Operation.create(
        "pcp.stop_gradient", operands=takes, results=[value.type]
    )
    return [stop.result]


def _behind(block: ir.Block, values: Sequence[ir.Value]) -> ir.InsertionPoint:
    """Where all of the values are there."""
    owners = [v.owner for v in values if isinstance(v, ir.OpResult)]
    makers = {hash(owner.operation): owner.operation for owner in owners}
    if not makers:
        return ir.InsertionPoint.at_block_begin(block)
    if len(makers) == 1:  # as it is for all stops: no search
        return ir.InsertionPoint.after(*makers.values())
    ordered = (view.operation for view in block.operations)
    *_, last = (op for op in ordered if hash(op) in makers)
    return ir.InsertionPoint.after(last)


def _location(spot: str) -> ir.Location:
    path, _, line = spot.rpartition(":")
    if not line.isdigit():
        return ir.Location.unknown()
    return ir.Location.file(path, int(line), 1)


def _shorten(function: ir.Operation, marks: range, results: int) -> None:
    """Drop the arguments of marks, and results behind those that the model has."""
    block = function.regions[0].blocks[0]
    for _ in marks:
        block.erase_argument(marks.start)
    end = block.operations[-1].operation
    function_body.finish(function, list(end.operands)[:results])
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]
