"""What a user or a pass says about where a tensor lies, as ops on the value."""

from typing import Any

from pcp.dialect.attributes import check_sharding
from pcp.dialect.base import Op, require, text
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
