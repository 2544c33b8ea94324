"""Calls inside of a module, put in the place of the call, with what is said of them.

MLIR's own inliner leaves functions alone that hold ops of pcp, and drops what stands
on a call or on a callee's arguments.
"""

from collections.abc import Iterable, Iterator, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.host import callee, is_host
from pcp.dialect.inlining import CALL, functions_of
from pcp.errors import nearest
from pcp.passes.core.base import CppPasses
from pcp.passes.core.dialects import check_cuttable
from pcp.passes.core.functions import entry
from pcp.passes.core.marks import MARK, mark_of
from pcp.passes.core.rewriting import functions, refuse, splice
from pcp.passes.core.walk import walk
from pcp.passes.sharding.ports import port_shardings

#: A call, and the functions that it came out of.
Call = tuple[ir.Operation, tuple[str, ...]]


def inline_calls(module: ir.Module) -> None:
    """Put each callee's ops in the place of its call.

    A callee's `pcp.sharding` on arguments and results becomes `pcp.constraint`s, a
    call's `pcp.stage` the mark of all that it stands for. A function that calls
    itself, or has no body, is refused, as is an op that cannot be cut.
    """
    check_cuttable(module)
    _inline_in(module, map(entry, functions(module)))


def inline_task_calls(module: ir.Module, tasks: Iterable[ir.Operation]) -> None:
    """Put each callee's ops in the place of its call in a task; host calls stay."""
    _inline_in(module, (task.regions[0].blocks[0] for task in tasks), host=True)


def _inline_in(
    module: ir.Module, blocks: Iterable[ir.Block], *, host: bool = False
) -> None:
    """Inline the calls in these blocks; with `host` those of host functions stay."""
    known = functions_of(module)
    stay = {n for n, function in known.items() if host and is_host(function)}
    pending: list[Call] = [
        (op, ())
        for block in blocks
        for op in walk(block)
        if op.name == CALL and callee(op) not in stay
    ]
    if not pending:
        return
    while pending:
        call, chain = pending.pop()
        name = callee(call)
        _check(call, name, chain, known)
        brought = [c for c in _inline(call, known[name]) if callee(c) not in stay]
        pending += [(inner, (*chain, name)) for inner in brought]
    CppPasses("symbol-dce").run(module)


def _check(
    call: ir.Operation,
    name: str,
    chain: Sequence[str],
    known: dict[str, ir.Operation],
) -> None:
    if name not in known:
        refuse(call, f"there is no function @{name}.{nearest(name, known)}")
    if name in chain:
        refuse(
            call,
            f"@{name} calls itself, so there is no end to what a device would run; "
            "use stablehlo.while",
        )
    if is_host(known[name]):
        refuse(
            call,
            f"@{name} is a host function, which runs in a pcp.task or in a program for "
            "one device, and this one is cut op by op over devices",
        )
    if (blocks := len(known[name].regions[0].blocks)) != 1:
        refuse(
            call,
            f"@{name} has {blocks or 'no'} blocks, and a program that is spread over "
            "devices is cut op by op; give it a body of one block, or the attribute "
            "pcp.host in a task",
        )


def _inline(call: ir.Operation, callee: ir.Operation) -> list[ir.Operation]:
    """Put the callee's body in the place of the call; the calls that it brings."""
    husk = callee.clone(ir.InsertionPoint.after(callee)).operation
    with ir.InsertionPoint(call), call.location:
        given = _constrained(husk, "arg_attrs", call.operands)
        returned, ops = splice(entry(husk), given, before=call)
        results = _constrained(husk, "res_attrs", returned)
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    if MARK in call.attributes:
        for op in ops:
            _mark(op, call)
    call.erase()
    husk.erase()
    return [inner for op in ops for inner in _with_inner(op) if inner.name == CALL]


def _constrained(
    callee: ir.Operation, which: str, values: Sequence[ir.Value]
) -> list[ir.Value]:
    """The values laid out as the callee says of its ports."""
    return [
        value
        if said is None
        else hlo.op("pcp.constraint", [value], [value.type], sharding=said).result
        for value, said in zip(
            values, port_shardings(callee, which, len(values)), strict=True
        )
    ]


def _mark(op: ir.Operation, call: ir.Operation) -> None:
    """Let an op be on its call's stage; it may not be on another."""
    own, stage = mark_of(op), mark_of(call)
    if own not in (None, stage):
        refuse(
            op,
            f"is marked {MARK} = {own}, in a function that is called with {MARK} = "
            f"{stage} at {location_string(call.location)}; keep one of them",
        )
    op.attributes[MARK] = call.attributes[MARK]


def _with_inner(op: ir.Operation) -> Iterator[ir.Operation]:
    yield op
    for region in op.regions:
        for block in region.blocks:
            yield from walk(block)
