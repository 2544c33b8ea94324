"""MLIR attributes as plain Python values."""

from typing import Any

from pcp.dialect.bindings import ir
from pcp.errors import IRError


def plain(attribute: ir.Attribute) -> Any:
    """Strings, numbers, lists and dictionaries of them.

    Symbol references become their names, types their text. Anything else is an
    `IRError`.
    """
    for kind, convert in _KINDS:
        if isinstance(attribute, kind):
            return convert(attribute)
    raise IRError(f"{attribute} is an attribute that a manifest cannot hold")


def dictionary(attribute: ir.Attribute | None) -> dict[str, Any]:
    """A dictionary attribute's entries; None is empty."""
    return {} if attribute is None else plain(attribute)


_KINDS = (
    (ir.BoolAttr, lambda a: bool(a.value)),
    (ir.IntegerAttr, lambda a: int(a.value)),
    (ir.FloatAttr, lambda a: float(a.value)),
    (ir.StringAttr, lambda a: a.value),
    (ir.FlatSymbolRefAttr, lambda a: a.value),
    (ir.TypeAttr, lambda a: str(a.value)),
    (ir.ArrayAttr, lambda a: [plain(entry) for entry in a]),
    (ir.DictAttr, lambda a: {n.name: plain(n.attr) for n in a}),
    (ir.DenseI64ArrayAttr, list),
    (ir.DenseI32ArrayAttr, list),
    (ir.DenseBoolArrayAttr, list),
)
