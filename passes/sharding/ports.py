"""`pcp.sharding` on the arguments and results of a function."""

from collections.abc import Sequence

from pcp.dialect.bindings import ir
from pcp.passes.sharding.layout import SHARDING


def port_shardings(
    function: ir.Operation, which: str, count: int
) -> list[ir.Attribute | None]:
    """`pcp.sharding` of each argument (`arg_attrs`) or result (`res_attrs`)."""
    if which not in function.attributes:
        return [None] * count
    entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[which])]
    return [entry[SHARDING] if SHARDING in entry else None for entry in entries]


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
