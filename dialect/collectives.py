"""Collectives: every member of a group runs the same one, with its own data.

The group of a member is all members that differ from it only along `axes` of
`mesh`. Group sizes are the mesh's: that shapes agree with them is checked by
`pcp-verify-plan`, that they can at all is checked here.

Flags all of them know: `ordered` (see `base.Communicates`), and `wire`, the
element type that travels where it is not the tensor's.
"""

from collections.abc import Sequence
from typing import Any

from pcp.dialect.base import (
    Communicates,
    Op,
    as_integers,
    integer,
    integers,
    kinds,
    require,
    strings,
    tensor,
    text,
)
from pcp.dialect.bindings import ext, ir

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "trimmed_mean")
#: Lossy codes in which float32 contributions to a sum may travel, and its result.
CODECS = ("fp8", "int8", "e3m0", "int2")


class Collective(Op):
    """What collectives share: one tensor in, one out, axes of a mesh."""

    optional = kinds(wire=ir.TypeAttr, ordered=ir.UnitAttr, channel=ir.IntegerAttr)

    def check_group(self) -> None:
        """The axes are names, at least one, each once."""
        axes = strings(self, "axes")
        require(axes, "needs at least one axis to communicate along")
        twice = sorted({axis for axis in axes if axes.count(axis) > 1})
        require(not twice, f"names axis {', '.join(map(repr, twice))} twice")

    def check_same_type(self) -> None:
        """What comes out has the type of what goes in."""
        given, result = tensor(self.operands[0]), self.results[0].type
        require(given == result, f"gives {result} for {given}; they must be equal")

    def check_kind(self) -> None:
        """A known reduction that the element type has."""
        kind = text(self, "kind")
        known = ", ".join(REDUCTIONS)
        require(kind in REDUCTIONS, f'does not know the kind "{kind}" (kinds: {known})')
        element = tensor(self.operands[0]).element_type
        if kind in ("max", "min", "trimmed_mean"):
            complex_ = isinstance(element, ir.ComplexType)
            require(not complex_, f"cannot order {element} for {kind}")
        if kind in ("mean", "trimmed_mean"):
            whole = isinstance(element, ir.IntegerType)
            require(not whole, f"cannot take the mean of {element}; convert to a float")
        if kind == "trimmed_mean":
            whole_op = self.name == "pcp.all_reduce"
            require(whole_op, "has no trimmed_mean, which all_reduce has")


class AllReduce(Collective, name="all_reduce", traits=[Communicates]):
    """Reduce over the group; every member gets the result.

    `trimmed_mean` is a mean without extremes: of each number a quarter of the members'
    are left out at either end, of three or more at least one.

    With a `codec` contributions travel in its code, are added up in rank order in
    f32, and the sum travels in it too: all members decode the same bytes.

    %y = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m}
        : (tensor<4xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    kind: ir.StringAttr
    result: ext.Result[Any]
    optional = kinds(**Collective.optional, codec=ir.StringAttr)

    def check(self) -> None:
        """Equal types, a known kind, and a code for sums of f32 only."""
        self.check_group()
        self.check_kind()
        self.check_same_type()
        if "codec" in self.attributes:
            self._check_codec(text(self, "codec"))

    def _check_codec(self, codec: str) -> None:
        known = ", ".join(CODECS)
        require(codec in CODECS, f'has no codec "{codec}" (codecs: {known})')
        summed = text(self, "kind") in ("sum", "mean")
        single = isinstance(tensor(self.operands[0]).element_type, ir.F32Type)
        require(summed and single, f"takes codec {codec} for sums and means of f32")
        require("wire" not in self.attributes, "has a codec and a wire type; take one")


class ReduceScatter(Collective, name="reduce_scatter", traits=[Communicates]):
    """Reduce over the group; each member keeps its part of dimension `dim`.

    `sizes` holds each member's part in order, or is empty: equal parts.

        %y = "pcp.reduce_scatter"(%x)
            {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []}
            : (tensor<8xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    kind: ir.StringAttr
    dim: ir.IntegerAttr
    sizes: ir.ArrayAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """The result is a part of the operand."""
        self.check_group()
        self.check_kind()
        whole, part = tensor(self.operands[0]), tensor(self.results[0], "the result")
        check_part(self, whole, part)


class AllGather(Collective, name="all_gather", traits=[Communicates]):
    """Every member gets the parts of all, joined along `dim` in group order.

    Along an elastic axis `dim` of the result is dynamic: as many parts as members.

    %y = "pcp.all_gather"(%x) {axes = ["dp"], dim = 0, mesh = @m, sizes = []}
        : (tensor<4xf32>) -> tensor<8xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr
    sizes: ir.ArrayAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """The operand is a part of the result."""
        self.check_group()
        part, whole = tensor(self.operands[0]), tensor(self.results[0], "the result")
        dim = integer(self, "dim")
        check_dim("dim", dim, whole)
        if not whole.is_dynamic_dim(dim):
            check_part(self, whole, part)
            return
        same_but(whole, part, {dim})
        require(not integers(self, "sizes"), "knows no sizes of a dynamic dimension")


class AllToAll(Collective, name="all_to_all", traits=[Communicates]):
    """Cut along `split`, send a piece to each member, join along `concat`.

    %y = "pcp.all_to_all"(%x) {axes = ["tp"], concat = 1, mesh = @m, split = 0}
        : (tensor<8x4xf32>) -> tensor<4x8xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    split: ir.IntegerAttr
    concat: ir.IntegerAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """`split` shrinks by the factor by which `concat` grows."""
        self.check_group()
        given, result = tensor(self.operands[0]), tensor(self.results[0], "the result")
        split, concat = integer(self, "split"), integer(self, "concat")
        for name, dim in (("split", split), ("concat", concat)):
            check_dim(name, dim, given)
        if split == concat:
            self.check_same_type()
            return
        same_but(given, result, {split, concat})
        cut, joined = given.shape[split], result.shape[concat]
        require(
            result.shape[split] * joined == cut * given.shape[concat]
            and result.shape[split] != 0
            and cut % result.shape[split] == 0,
            f"cannot turn {given} into {result}: dimension {split} must shrink by the "
            f"factor by which dimension {concat} grows",
        )


class Broadcast(Collective, name="broadcast", traits=[Communicates]):
    """Every member gets the value of member `root` of its group.

    %y = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = 0}
        : (tensor<4xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    root: ir.IntegerAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """Equal types, a root that can exist."""
        self.check_group()
        root = integer(self, "root")
        require(root >= 0, f"root {root} is no member; members count from 0")
        self.check_same_type()


class Permute(Collective, name="permute", traits=[Communicates]):
    """Member `source` sends to member `target` for each `[source, target]` pair.

    A member that is nobody's target gets zeros.

        %y = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0, 1], [1, 0]]}
            : (tensor<4xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    pairs: ir.ArrayAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """No member sends or receives twice."""
        self.check_group()
        pairs = [as_integers(pair, "pairs") for pair in ir.ArrayAttr(self.pairs)]
        for pair in pairs:
            require(len(pair) == 2, f"a pair is [source, target], not {pair}")
            require(min(pair) >= 0, f"pair {pair}: members count from 0")
        for i, what in enumerate(("source", "target")):
            members = [pair[i] for pair in pairs]
            for member in members:
                once = members.count(member) == 1
                require(once, f"member {member} is a {what} twice")
        self.check_same_type()


class Sync(Op, name="sync"):
    """A member goes on when every member of its group is here.

    "pcp.sync"() {axes = ["dp"], mesh = @m} : () -> ()
    """

    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr

    def check(self) -> None:
        """At least one axis."""
        require(strings(self, "axes"), "needs at least one axis to wait along")


# --- shapes ---


def check_dim(name: str, dim: int, type_: ir.RankedTensorType) -> None:
    """`dim` is a dimension of the type."""
    require(0 <= dim < type_.rank, f"{name} = {dim} is not a dimension of {type_}")


def same_but(
    a: ir.RankedTensorType, b: ir.RankedTensorType, dims: set[int] | frozenset[int]
) -> None:
    """Equal element types and shapes, except along `dims`."""
    require(
        a.element_type == b.element_type
        and a.rank == b.rank
        and all(a.shape[d] == b.shape[d] for d in range(a.rank) if d not in dims),
        f"{a} and {b} may differ only in dimension {', '.join(map(str, sorted(dims)))}",
    )


def check_part(op: Op, whole: ir.RankedTensorType, part: ir.RankedTensorType) -> None:
    """`part` is a part of `whole` along the op's `dim`, of one of its `sizes`."""
    dim, sizes = integer(op, "dim"), integers(op, "sizes")
    check_dim("dim", dim, whole)
    same_but(whole, part, {dim})
    total, own = whole.shape[dim], part.shape[dim]
    if not sizes:
        fits = own > 0 and total % own == 0
        require(fits, f"dimension {dim} of {whole} is not a multiple of that of {part}")
        return
    require(min(sizes) >= 0, "sizes are at least 0")
    require(
        sum(sizes) == total,
        f"sizes {sizes} sum to {sum(sizes)}, and dimension {dim} of {whole} is {total}",
    )
    require(own in sizes, f"no member of sizes {sizes} has the {own} of {part}")


# --- builders: at the current insertion point and location ---


def all_reduce(
    x: ir.Value, *, mesh: str, axes: Sequence[str], kind: str = "sum", **flags: Any
) -> ir.Value:
    """`pcp.all_reduce`; `flags` are further attributes, such as `wire`."""
    attributes = _group(mesh, axes) | {"kind": ir.StringAttr.get(kind)} | flags
    return _create("all_reduce", x, x.type, attributes)


def reduce_scatter(
    x: ir.Value,
    result: ir.Type,
    *,
    mesh: str,
    axes: Sequence[str],
    dim: int,
    kind: str = "sum",
    sizes: Sequence[int] = (),
    **flags: Any,
) -> ir.Value:
    """`pcp.reduce_scatter` to the type `result`."""
    attributes = _group(mesh, axes) | {
        "kind": ir.StringAttr.get(kind),
        "dim": _i64(dim),
        "sizes": _i64_array(sizes),
    }
    return _create("reduce_scatter", x, result, attributes | flags)


def all_gather(
    x: ir.Value,
    result: ir.Type,
    *,
    mesh: str,
    axes: Sequence[str],
    dim: int,
    sizes: Sequence[int] = (),
    **flags: Any,
) -> ir.Value:
    """`pcp.all_gather` to the type `result`."""
    attributes = _group(mesh, axes) | {"dim": _i64(dim), "sizes": _i64_array(sizes)}
    return _create("all_gather", x, result, attributes | flags)


def all_to_all(
    x: ir.Value,
    result: ir.Type,
    *,
    mesh: str,
    axes: Sequence[str],
    split: int,
    concat: int,
    **flags: Any,
) -> ir.Value:
    """`pcp.all_to_all` to the type `result`."""
    attributes = _group(mesh, axes) | {"split": _i64(split), "concat": _i64(concat)}
    return _create("all_to_all", x, result, attributes | flags)


def broadcast(
    x: ir.Value, *, mesh: str, axes: Sequence[str], root: int = 0, **flags: Any
) -> ir.Value:
    """`pcp.broadcast` from member `root`."""
    return _create(
        "broadcast", x, x.type, _group(mesh, axes) | {"root": _i64(root)} | flags
    )


def permute(
    x: ir.Value,
    *,
    mesh: str,
    axes: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    **flags: Any,
) -> ir.Value:
    """`pcp.permute` along `(source, target)` pairs."""
    written = ir.ArrayAttr.get([_i64_array(pair) for pair in pairs])
    return _create(
        "permute", x, x.type, _group(mesh, axes) | {"pairs": written} | flags
    )


def sync(*, mesh: str, axes: Sequence[str]) -> None:
    """`pcp.sync`."""
    ir.Operation.create("pcp.sync", attributes=_group(mesh, axes))


def _create(
    name: str, x: ir.Value, result: ir.Type, attributes: dict[str, ir.Attribute]
) -> ir.Value:
    op = ir.Operation.create(
        f"pcp.{name}", operands=[x], results=[result], attributes=attributes
    )
    return op.results[0]


def _group(mesh: str, axes: Sequence[str]) -> dict[str, ir.Attribute]:
    return {
        "mesh": ir.FlatSymbolRefAttr.get(mesh),
        "axes": ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes]),
    }


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _i64_array(values: Sequence[int]) -> ir.Attribute:
    return ir.ArrayAttr.get([_i64(value) for value in values])
