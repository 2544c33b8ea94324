"""State that all members of a group share, and proof that it is the same."""

from collections.abc import Sequence

from pcp.dialect.base import (
    Communicates,
    Op,
    Results,
    Values,
    Writes,
    integer,
    kinds,
    require,
    strings,
    text,
)
from pcp.dialect.bindings import ext, ir
from pcp.dialect.bundles import bundled, pack, types_of, unpack

ALGORITHMS = ("sha256", "blake2b")
ACTIONS = ("trap", "repair", "report")


class ParamSync(Op, name="param_sync", traits=[Communicates]):
    """After it every member of the group holds bit-identical values.

    They are those of the elected source: the member with the newest state, or
    member `source`. Members compare digests first, and only what differs moves.

        %p, %m = "pcp.param_sync"(%w, %v) {axes = ["workers"], mesh = @m}
            : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    """

    inputs: Values
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    outputs: Results
    optional = kinds(source=ir.IntegerAttr, ordered=ir.UnitAttr)

    def check(self) -> None:
        """Tensors in, the same types out."""
        require(strings(self, "axes"), "needs at least one axis to sync along")
        given = _tensors(self, "sync")
        results = types_of(self.results)
        require(results == given, "gives other types than it takes; they must be equal")
        source = integer(self, "source")
        require(source >= 0, f"source {source} is no member; members count from 0")


class Digest(Op, name="digest", traits=[ext.Pure]):
    """The first 128 bits of a hash of the operands' bytes, in operand order.

    %h = "pcp.digest"(%w, %v) {algo = "sha256"}
        : (tensor<4xf32>, tensor<4xf32>) -> tensor<2xi64>
    """

    inputs: Values
    algo: ir.StringAttr
    outputs: Results

    def check(self) -> None:
        """A known algorithm, a result of two words."""
        algo = text(self, "algo")
        known = ", ".join(ALGORITHMS)
        require(algo in ALGORITHMS, f'algo is one of {known}, not "{algo}"')
        _tensors(self, "hash")
        results = [str(r.type) for r in self.results]
        require(results == ["tensor<2xi64>"], "gives one tensor<2xi64>")


class Parity(Op, name="parity", traits=[Writes]):
    """Every member of the group holds the same bits of the operands.

    If not: "trap" ends the program, "repair" takes the values that most members
    hold, in what comes behind it in its block, "report" says so and goes on.

        "pcp.parity"(%w) {action = "trap", axes = ["dp"], mesh = @m}
            : (tensor<4xf32>) -> ()
    """

    inputs: Values
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    action: ir.StringAttr

    def check(self) -> None:
        """Something to compare, a known action."""
        require(strings(self, "axes"), "needs at least one axis to compare along")
        _tensors(self, "compare")
        action = text(self, "action")
        known = ", ".join(ACTIONS)
        require(action in ACTIONS, f'action is one of {known}, not "{action}"')


def _tensors(op: Op, what: str) -> list[ir.Type]:
    """The types of the tensors an op takes; at least one."""
    require(len(op.operands), f"needs something to {what}")
    types = types_of(op.operands)
    for type_ in types:
        ranked = isinstance(type_, ir.RankedTensorType)
        require(ranked, f"takes ranked tensors, not {type_}")
    return types


def param_sync(
    values: Sequence[ir.Value], *, mesh: str, axes: Sequence[str]
) -> list[ir.Value]:
    """`pcp.param_sync` at the current insertion point and location."""
    op = ir.Operation.create(
        "pcp.param_sync",
        operands=pack(values),
        results=bundled([value.type for value in values]),
        attributes={
            "mesh": ir.FlatSymbolRefAttr.get(mesh),
            "axes": ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes]),
        },
    )
    return unpack(op.results)
