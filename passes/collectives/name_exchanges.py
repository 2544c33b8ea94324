"""pcp-name-exchanges: of which tensor a sum with other islands has a part."""

from dataclasses import dataclass

from pcp.dialect.base import strings, text
from pcp.dialect.bindings import ir
from pcp.mesh import WORKERS
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.core.walk import block_of, walk
from pcp.passes.sharding.layout import Layout, from_attribute
from pcp.passes.sharding.ports import op_shardings

PART_OF = "part_of"
"""The tensor of which a collective's operand is a part: name, shape, layout."""


@dataclass(frozen=True)
class NameExchanges(Pass):
    """Say of each sum over islands which part of which tensor a rank sums.

    Islands of unlike shape have parts that differ, so that ranks cannot match the
    sums that their programs make by their numbers and sizes: they match pieces of
    tensors (`pcp.pieces`). The name is the function's and the sum's number in it,
    which are alike in the programs of all shapes of one model.

    Assumes what pcp-insert-reshards leaves, before pcp-partition. Such sums go into no
    bucket.

    Before:

        %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @w,
            pcp.sharding = [#pcp.sharding<@m, [[], ["tp"]], [], []>]}
            : (tensor<4x8xf32>) -> tensor<4x8xf32>

    After, in @outer_step:

        %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @w,
            part_of = {layout = [[], ["tp"]], name = "outer_step.0", shape = [4, 8]},
            pcp.sharding = [#pcp.sharding<@m, [[], ["tp"]], [], []>]}
            : (tensor<4x8xf32>) -> tensor<4x8xf32>
    """

    name = "pcp-name-exchanges"

    def run(self, module: ir.Module) -> None:
        """Name the exchanges of every function."""
        with module.context:
            for function in functions(module):
                _name(function)


def _name(function: ir.Operation) -> None:
    number = 0
    for op in walk(block_of(function, 0)):
        if not op.name.startswith("pcp.") or "axes" not in op.attributes:
            continue
        if WORKERS not in strings(op, "axes"):
            continue
        if op.name != "pcp.all_reduce" or text(op, "kind") != "sum":
            refuse(
                op,
                "islands of unlike shape exchange plain sums alone; take another "
                "algorithm, or islands of one shape",
            )
        if "codec" in op.attributes:
            refuse(
                op,
                "islands of unlike shape exchange numbers as they are; leave the "
                "codec out, or take islands of one shape",
            )
        (sharding,) = op_shardings(op)
        layout = from_attribute(sharding)
        if layout.unreduced:
            refuse(
                op,
                f"what it sums is not whole along {', '.join(layout.unreduced)}; give "
                "the tensor a layout, --sharding FILE",
            )
        shape = tuple(ir.RankedTensorType(op.results[0].type).shape)
        name = f"{symbol_name(function)}.{number}"
        op.attributes[PART_OF] = _described(name, shape, layout)
        number += 1


def _described(name: str, shape: tuple[int, ...], layout: Layout) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    dims = [
        ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])
        for axes in layout.dims
    ]
    return ir.DictAttr.get(
        {
            "name": ir.StringAttr.get(name),
            "shape": ir.ArrayAttr.get([ir.IntegerAttr.get(i64, n) for n in shape]),
            "layout": ir.ArrayAttr.get(dims),
        }
    )
