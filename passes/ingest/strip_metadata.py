"""`pcp-strip-metadata`: drop what only pcp reads, so that IREE sees nothing of it.

The `pcp.*` attributes, the descriptions (`pcp.mesh`, `pcp.device`, ...) and functions
that only call their parts have served once the signature stands in the manifest.
"""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import PARTS

DESCRIPTIONS = frozenset({"pcp.target", "pcp.device", "pcp.link", "pcp.mesh"})
EXPANDED_BY = {
    "pcp.grad": "pcp-grad",
    "pcp.microbatch": "pcp-accumulate",
    "pcp.optimizer": "pcp-expand-training",
    "pcp.outer": "pcp-expand-training",
}
"""Training ops, and the pass that expands each."""


@dataclass(frozen=True)
class StripMetadata(Pass):
    """Drop pcp's attributes and descriptions.

    Assumes that they have been read; leaves no op and no attribute of the `pcp`
    dialect. A pcp op that computes something is an error: it was to be lowered.
    Before and after:

        "pcp.mesh"() {sym_name = "workers", ...} : () -> ()
        func.func @main(%x: tensor<4xf32> {pcp.role = "param"}) -> tensor<4xf32>

        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-strip-metadata"

    def run(self, module: ir.Module) -> None:
        """Strip `module` in place."""
        strip_metadata(module)


def strip_metadata(module: ir.Module) -> None:
    """Erase descriptions, and `pcp.*` attributes everywhere."""
    _strip_attributes(module.operation)
    for op in list(_walk(module.operation)):
        if _is_description(op):
            op.erase()
        elif op.name.startswith("pcp."):
            raise PassError(f"{location_string(op.location)}: {_left(op.name)}")
        else:
            _strip_attributes(op)


def _is_description(op: ir.Operation) -> bool:
    """Whether the op only says something; of a function, how its parts are called."""
    return op.name in DESCRIPTIONS or PARTS in op.attributes


def _left(name: str) -> str:
    if expander := EXPANDED_BY.get(name):
        return f"{name}: not expanded; run {expander} before pcp-strip-metadata"
    return f"{name}: not lowered; run pcp-lower-to-runtime before pcp-strip-metadata"


def _walk(op: ir.Operation):
    for region in op.regions:
        for block in region:
            for inner in list(block.operations):
                yield inner.operation
                # A description holds nothing that must stay.
                if not _is_description(inner.operation):
                    yield from _walk(inner.operation)


def _strip_attributes(op: ir.Operation) -> None:
    for name in list(op.attributes):
        if name.startswith("pcp."):
            del op.attributes[name]
        elif name in ("arg_attrs", "res_attrs"):
            op.attributes[name] = _without_pcp(op.attributes[name])


def _without_pcp(dictionaries: ir.Attribute) -> ir.Attribute:
    """An array of attribute dictionaries without the `pcp.*` keys."""
    kept = [
        ir.DictAttr.get(
            {
                named.name: named.attr
                for named in ir.DictAttr(entry)
                if not named.name.startswith("pcp.")
            },
            context=dictionaries.context,
        )
        for entry in ir.ArrayAttr(dictionaries)
    ]
    return ir.ArrayAttr.get(kept, context=dictionaries.context)
