"""What a user or a pass says about where a tensor lies, as ops on the value."""

from typing import Any

from pcp.dialect.attributes import check_sharding
from pcp.dialect.base import Op, require, tensor, text
from pcp.dialect.bindings import ext, ir

DIRECTIONS = ("fwd", "bwd", "none")


class Annotation(Op):
    """What annotations share: a tensor goes through unchanged."""

    def check_same_type(self) -> None:
        """The result has the operand's type."""
        given, result = self.operands[0].type, self.results[0].type
        require(given == result, f"gives {result} for {given}; they must be equal")


class Constraint(Annotation, name="constraint", traits=[ext.Pure]):
    """The user wants this value sharded so.

    %y = "pcp.constraint"(%x)
        {sharding = #pcp.sharding<@m, [["dp"], []], [], []>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
    """

    operand: ext.Operand[Any]
    sharding: Any
    result: ext.Result[Any]

    def check(self) -> None:
        """A sharding of the tensor's rank, each axis once."""
        self.check_same_type()
        check_sharding(self.sharding, self.operands[0].type)


class Reshard(Annotation, name="reshard", traits=[ext.Pure]):
    """The value as it lies, made to lie so; gone after `pcp-partition`.

    %y = "pcp.reshard"(%x)
        {sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
    """

    operand: ext.Operand[Any]
    sharding: Any
    result: ext.Result[Any]

    def check(self) -> None:
        """A sharding of the tensor's rank, each axis once."""
        self.check_same_type()
        check_sharding(self.sharding, self.operands[0].type)


class BarrierProp(Annotation, name="barrier_prop", traits=[ext.Pure]):
    """Shardings do not propagate through here forwards, backwards, or at all.

    `direction` is the one that stays open: "fwd", "bwd" or "none".

        %y = "pcp.barrier_prop"(%x) {direction = "none"}
            : (tensor<8x4xf32>) -> tensor<8x4xf32>
    """

    operand: ext.Operand[Any]
    direction: ir.StringAttr
    result: ext.Result[Any]

    def check(self) -> None:
        """Equal types, a known direction."""
        self.check_same_type()
        direction = text(self, "direction")
        known = ", ".join(DIRECTIONS)
        require(
            direction in DIRECTIONS, f'direction is one of {known}, not "{direction}"'
        )


class ShardingGroup(Op, name="sharding_group"):
    """All values of a function that are in the same group lie alike.

    As far as they are free to: what a user says of one stays as it is said. Gone
    after `pcp-propagate-sharding`.

        "pcp.sharding_group"(%x) {group = 0 : i64} : (tensor<8x4xf32>) -> ()
    """

    operand: ext.Operand[Any]
    group: ir.IntegerAttr

    def check(self) -> None:
        """A tensor."""
        tensor(self.operands[0])


class Part(Op):
    """What the border of a member's own program shares: one tensor and its part."""

    def check_part(self, whole: ir.Value, part: ir.Value) -> None:
        """The part has the whole's rank and element type, and is no larger."""
        outer, inner = tensor(whole), tensor(part, "the result")
        fits = (
            outer.element_type == inner.element_type
            and outer.rank == inner.rank
            and all(m <= n for m, n in zip(inner.shape, outer.shape, strict=True))
        )
        require(fits, f"{inner} is no part of {outer}")
        check_sharding(self.sharding, outer)


class ToPart(Part, name="to_part", traits=[ext.Pure]):
    """A member's part of a tensor that lies so; a program for one member follows.

    What is computed of parts differs from member to member, and nothing cuts it
    further; collectives there are the program's own. `pcp-partition` drops the op.

        %p = "pcp.to_part"(%x)
            {sharding = #pcp.sharding<@m, [["dp"], []], [], []>}
            : (tensor<8x4xf32>) -> tensor<4x4xf32>
    """

    operand: ext.Operand[Any]
    sharding: Any
    result: ext.Result[Any]

    def check(self) -> None:
        """A part, and a sharding of the whole."""
        self.check_part(self.operands[0], self.results[0])


class FromPart(Part, name="from_part", traits=[ext.Pure]):
    """The tensor of which each member has computed its part.

    %x = "pcp.from_part"(%p)
        {sharding = #pcp.sharding<@m, [["dp"], []], [], []>}
        : (tensor<4x4xf32>) -> tensor<8x4xf32>
    """

    operand: ext.Operand[Any]
    sharding: Any
    result: ext.Result[Any]

    def check(self) -> None:
        """A part, and a sharding of the whole."""
        self.check_part(self.results[0], self.operands[0])
