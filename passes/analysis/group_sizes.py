"""Whether a collective's attributes and shapes agree with its group's size."""

from collections.abc import Callable

from pcp.dialect.base import Invalid, as_integers, integer, integers
from pcp.dialect.bindings import ir


def _check_ratio(op: ir.Operation, members: int) -> None:
    """Parts along `dim`: as many as there are members."""
    dim, sizes = integer(op, "dim"), integers(op, "sizes")
    if sizes:
        if len(sizes) != members:
            raise Invalid(f"has {len(sizes)} sizes for {members} members")
        return
    extents = [
        ir.RankedTensorType(v.type).shape[dim] for v in (op.operands[0], op.results[0])
    ]
    ratio = max(extents) // max(1, min(extents))
    grows = extents[1] >= extents[0]
    if ratio != members or grows != (op.name == "pcp.all_gather" or ratio == 1):
        raise Invalid(f"has {ratio} parts along dimension {dim} for {members} members")


def _check_exchange(op: ir.Operation, members: int) -> None:
    split, concat = integer(op, "split"), integer(op, "concat")
    given, result = (
        ir.RankedTensorType(v.type).shape for v in (op.operands[0], op.results[0])
    )
    ratio = given[split] // max(1, result[split]) if split != concat else members
    if ratio != members or given[split] % members:
        raise Invalid(
            f"cuts dimension {split} of {given[split]} into {ratio} "
            f"for {members} members"
        )


def _check_root(op: ir.Operation, members: int) -> None:
    root = integer(op, "root")
    if root >= members:
        raise Invalid(f"has root {root} in a group of {members} members")


def _check_source(op: ir.Operation, members: int) -> None:
    source = integer(op, "source")
    if source >= members:
        raise Invalid(f"has source {source} in a group of {members} members")


def _check_pairs(op: ir.Operation, members: int) -> None:
    for pair in ir.ArrayAttr(op.attributes["pairs"]):
        for member in as_integers(pair, "pairs"):
            if member >= members:
                raise Invalid(f"names member {member} in a group of {members} members")


GROUPS: dict[str, Callable[[ir.Operation, int], None]] = {
    "pcp.all_gather": _check_ratio,
    "pcp.reduce_scatter": _check_ratio,
    "pcp.all_to_all": _check_exchange,
    "pcp.broadcast": _check_root,
    "pcp.permute": _check_pairs,
    "pcp.param_sync": _check_source,
}
SIZED = ("pcp.all_gather", "pcp.reduce_scatter", "pcp.all_to_all")
