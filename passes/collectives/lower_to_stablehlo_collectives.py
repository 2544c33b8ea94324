"""pcp-lower-to-stablehlo-collectives: for the reference interpreter.

StableHLO's collectives name members by number: here they are the partitions of one
replica, `programs = [[@f, @f]]` of `interpreter.run_parallel`. The members of a mesh
are numbered with the last axis fastest, and a group holds those that differ only
along the op's axes. An elastic axis gets the size that the option says. Each
collective has a channel of its own: in the interpreter members that are done with
one would otherwise meet those that still wait for another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.attributes import ELASTIC, axis_sizes
from pcp.dialect.base import integers, strings, symbol, text
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.bundles import pack, unpack
from pcp.passes.collectives.synchronize import drop_tuples, synchronize
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import before, integer, operations, refuse, replace

Value = ir.Value


@dataclass(frozen=True)
class LowerToStablehloCollectives(Pass):
    """Turn pcp's collectives into StableHLO's, over partitions.

    Assumes one program for all members; `elastic` is the size of elastic axes.
    Leaves no op of pcp that communicates. `pcp.sync` goes away, since it changes no
    value. `pcp.send`, `pcp.recv`, `pcp.digest` and `pcp.parity` are refused.

    Before, run as pcp-lower-to-stablehlo-collectives{elastic=2}:

        %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m}
            : (tensor<4xf32>) -> tensor<4xf32>

    After:

        %y = "stablehlo.all_reduce"(%x) <{
            channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
            replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
            use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-lower-to-stablehlo-collectives"
    elastic: int = 0

    def run(self, module: ir.Module) -> None:
        """Lower every collective."""
        with module.context:
            lower(module, self.elastic)


def lower(module: ir.Module, elastic: int) -> None:
    """See `LowerToStablehloCollectives`."""
    synchronize(module)
    meshes = {
        symbol_name(op): axis_sizes(op.attributes["axes"])
        for op in module.body.operations
        if op.operation.name == "pcp.mesh"
    }
    count = 0
    for op in operations(module):
        if op.name in REFUSED:
            refuse(op, "StableHLO's interpreter has no such collective")
        elif op.name == "pcp.sync":
            op.erase()
        elif op.name in LOWERINGS:
            groups = replica_groups(op, meshes, elastic)
            with before(op):
                values = LOWERINGS[op.name](op, groups)
                count = _number_channels(values, count)
                replace(op, pack(values))
    drop_tuples(module)


def _number_channels(values: Sequence[Value], count: int) -> int:
    """Give the collectives behind `values` channels above `count`; the highest."""
    for value in values:
        op = value.owner.operation
        if op.name == "stablehlo.divide":  # of a mean
            op = op.operands[0].owner.operation
        count += 1
        op.attributes["channel_handle"] = stablehlo.ChannelHandle.get(count, 1)
        if op.name in GLOBAL:
            op.attributes["use_global_device_ids"] = ir.UnitAttr.get()
    return count


GLOBAL = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter")
REFUSED = ("pcp.send", "pcp.recv", "pcp.digest", "pcp.parity")

Groups = list[list[int]]


def replica_groups(
    op: ir.Operation, meshes: dict[str, dict[str, int]], elastic: int
) -> Groups:
    """The groups in which `op` communicates, as replica numbers."""
    mesh, along = symbol(op, "mesh"), strings(op, "axes")
    if mesh not in meshes:
        refuse(op, f"the module has no mesh @{mesh}")
    sizes = {
        axis: elastic if size == ELASTIC else size
        for axis, size in meshes[mesh].items()
    }
    if 0 in sizes.values():
        refuse(op, f"mesh @{mesh} has an elastic axis; say its size with elastic=...")
    if unknown := [axis for axis in along if axis not in sizes]:
        refuse(op, f"mesh @{mesh} has no axis {unknown[0]!r}")
    numbers = np.arange(np.prod(list(sizes.values()))).reshape(list(sizes.values()))
    fixed = [
        range(n) if axis not in along else [slice(None)] for axis, n in sizes.items()
    ]
    order = [axis for axis in sizes if axis in along]
    permutation = [order.index(axis) for axis in along]
    return [
        numbers[place].transpose(permutation).reshape(-1).tolist()
        for place in product(*fixed)
    ]


# --- one function an op ---


def _reducer(op: ir.Operation) -> Callable[[Value, Value], Value]:
    return {
        "sum": hlo.add,
        "mean": hlo.add,
        "max": hlo.maximum,
        "min": hlo.minimum,
        "prod": hlo.multiply,
    }[text(op, "kind")]


def _reducing(name: str, op: ir.Operation, groups: Groups, **more: ir.Attribute):
    result = op.results[0].type
    made = hlo.op(
        name,
        [op.operands[0]],
        [result],
        regions=1,
        replica_groups=hlo.i64_matrix(groups),
        **more,
    )
    scalar = hlo.tensor((), hlo.element_type(result))
    hlo.body(made, [scalar, scalar], _reducer(op))
    if text(op, "kind") != "mean":
        return [made.result]
    count = hlo.constant_like(made.result, len(groups[0]))
    return [hlo.divide(made.result, count)]


def _all_reduce(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    if "codec" in op.attributes:
        refuse(op, "StableHLO has no codecs; build the program with wire=f32")
    if text(op, "kind") == "trimmed_mean":
        refuse(
            op, "StableHLO has no trimmed mean; build the program with mean=weighted"
        )
    return _reducing("all_reduce", op, groups)


def _reduce_scatter(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    _even(op)
    dim = hlo.i64(integer(op, "dim"))
    return _reducing("reduce_scatter", op, groups, scatter_dimension=dim)


def _all_gather(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    _even(op)
    dim = integer(op, "dim")
    shape = list(hlo.shape_of(op.operands[0]))
    shape[dim] *= len(groups[0])  # what a dynamic one is for this many members
    result = hlo.tensor(shape, hlo.element_type(op.operands[0]))
    made = hlo.op(
        "all_gather",
        [op.operands[0]],
        [result],
        replica_groups=hlo.i64_matrix(groups),
        all_gather_dim=hlo.i64(dim),
    )
    return list(made.results)


def _all_to_all(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    return _moving(
        op,
        "all_to_all",
        groups,
        split_dimension=hlo.i64(integer(op, "split")),
        concat_dimension=hlo.i64(integer(op, "concat")),
        split_count=hlo.i64(len(groups[0])),
    )


def _broadcast(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    return [_from_root(op, op.operands[0], groups, integer(op, "root"))]


def _param_sync(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    """All members end with the values of the source; 0 where none is named."""
    source = integer(op, "source") if "source" in op.attributes else 0
    operands = unpack(list(op.operands))
    return [_from_root(op, operand, groups, source) for operand in operands]


def _from_root(op: ir.Operation, x: Value, groups: Groups, root: int) -> Value:
    if root >= len(groups[0]):
        refuse(op, f"member {root} is not in a group of {len(groups[0])}")
    rooted = [[group[root], *group[:root], *group[root + 1 :]] for group in groups]
    made = hlo.op(
        "collective_broadcast", [x], [x.type], replica_groups=hlo.i64_matrix(rooted)
    )
    return made.result


def _permute(op: ir.Operation, groups: Groups) -> Sequence[Value]:
    pairs = [
        [group[ir.IntegerAttr(member).value] for member in ir.ArrayAttr(pair)]
        for group in groups
        for pair in ir.ArrayAttr(op.attributes["pairs"])
    ]
    return [
        hlo.op(
            "collective_permute",
            [op.operands[0]],
            [op.results[0].type],
            source_target_pairs=hlo.i64_matrix(pairs),
        ).result
    ]


def _moving(
    op: ir.Operation, name: str, groups: Groups, **attributes: ir.Attribute
) -> Sequence[Value]:
    made = hlo.op(
        name,
        [op.operands[0]],
        [op.results[0].type],
        replica_groups=hlo.i64_matrix(groups),
        **attributes,
    )
    return list(made.results)


def _even(op: ir.Operation) -> None:
    sizes = integers(op, "sizes")
    if len(set(sizes)) > 1:
        refuse(op, f"StableHLO has equal parts only, not {sizes}")


LOWERINGS: dict[str, Callable[[ir.Operation, Groups], Sequence[Value]]] = {
    "pcp.all_reduce": _all_reduce,
    "pcp.reduce_scatter": _reduce_scatter,
    "pcp.all_gather": _all_gather,
    "pcp.all_to_all": _all_to_all,
    "pcp.broadcast": _broadcast,
    "pcp.param_sync": _param_sync,
    "pcp.permute": _permute,
}
