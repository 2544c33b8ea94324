"""`pcp.sharding` on the arguments and results of a function, and on ops."""

from collections.abc import Sequence

from pcp.dialect.attributes import Sharding, check_kind
from pcp.dialect.base import Invalid
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import refuse
from pcp.passes.sharding.layout import SHARDING

_PORTS = {"arg_attrs": "argument", "res_attrs": "result"}


def port_shardings(
    function: ir.Operation, which: str, count: int
) -> list[ir.Attribute | None]:
    """`pcp.sharding` of each argument (`arg_attrs`) or result (`res_attrs`)."""
    if which not in function.attributes:
        return [None] * count
    entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[which])]
    given = [entry[SHARDING] if SHARDING in entry else None for entry in entries]
    for i, attribute in enumerate(given):
        if attribute is not None:
            check_written(function, f"{_PORTS[which]} {i}: {SHARDING}", attribute)
    return given


def op_shardings(op: ir.Operation) -> list[ir.Attribute]:
    """`pcp.sharding` of each result of an op that has it."""
    said = op.attributes[SHARDING]
    if not isinstance(said, ir.ArrayAttr):
        refuse(op, f"{SHARDING} is a list with an entry for each result, not {said}")
    given = list(said)
    if len(given) != len(op.results):
        refuse(op, f"{SHARDING} has {len(given)} entries for {len(op.results)} results")
    for attribute in given:
        if not isinstance(attribute, Sharding):
            check_written(op, f"an entry of {SHARDING}", attribute)
    return given


def check_written(op: ir.Operation, what: str, attribute: ir.Attribute) -> None:
    """Raise at what is no sharding, of whatever tensor."""
    try:
        check_kind(attribute)
    except Invalid as error:
        refuse(op, f"{what}: {error}")


def set_port_shardings(
    function: ir.Operation, which: str, shardings: Sequence[ir.Attribute | None]
) -> None:
    """Set `pcp.sharding` of every port that has one, other attributes kept."""
    old = (
        [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[which])]
        if which in function.attributes
        else [ir.DictAttr.get({})] * len(shardings)
    )
    entries = [
        ir.DictAttr.get(
            {named.name: named.attr for named in entry}
            | ({} if new is None else {SHARDING: new})
        )
        for entry, new in zip(old, shardings, strict=True)
    ]
    function.attributes[which] = ir.ArrayAttr.get(entries)
