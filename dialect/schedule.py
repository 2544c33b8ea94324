"""Work placed on devices: tasks, transfers between them, and their order."""

from typing import Any

from pcp.dialect.attributes import On, unwrap
from pcp.dialect.base import (
    Op,
    Results,
    Values,
    integer,
    kinds,
    require,
    symbol,
    text,
)
from pcp.dialect.bindings import ext, ir
from pcp.dialect.bundles import types_of

KINDS = ("gpipe", "1f1b", "zb-h1", "custom")
DIRECTIONS = ("fwd", "bwd", "wgrad", "opt")
PLACED = ("pcp.task", "pcp.transfer", "pcp.yield", "builtin.unrealized_conversion_cast")


class Yield(Op, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """The results of the region it ends.

    "pcp.yield"(%x) : (tensor<4xf32>) -> ()
    """

    inputs: Values


class Task(Op, name="task", traits=[ir.IsIsolatedFromAboveTrait]):
    """A unit of work on a device; its region sees its operands and nothing else.

    Operands and results are placed on the task's device; inside the region they
    are plain tensors. Its body is StableHLO, or ops of `arith`, `linalg`, `math` and
    `tensor` on tensors. It may call functions, also one that the host has: a private
    `func.func` without a body and with the attribute `pcp.host`. Optional: `stage`,
    `microbatch`, `dir` (fwd, bwd, wgrad, opt).

        %b = "pcp.task"(%a) ({
        ^bb0(%x: tensor<4xf32>):
          %t = stablehlo.tanh %x : tensor<4xf32>
          "pcp.yield"(%t) : (tensor<4xf32>) -> ()
        }) {device = @d0, dir = "fwd", microbatch = 0, stage = 0}
            : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    """

    inputs: Values
    device: ir.FlatSymbolRefAttr
    body: ext.Region
    outputs: Results
    optional = kinds(stage=ir.IntegerAttr, microbatch=ir.IntegerAttr, dir=ir.StringAttr)

    def check(self) -> None:
        """Everything on the task's device, and the region of their plain types."""
        device = symbol(self, "device")
        for name in ("stage", "microbatch"):
            require(integer(self, name) >= 0, f"has a negative {name}")
        if "dir" in self.attributes:
            known = ", ".join(DIRECTIONS)
            direction = text(self, "dir")
            require(
                direction in DIRECTIONS, f'dir is one of {known}, not "{direction}"'
            )
        takes = [_on(t, device, "an operand") for t in types_of(self.operands)]
        gives = [_on(t, device, "a result") for t in types_of(self.results)]
        check_region(self, takes, gives)


class Transfer(Op, name="transfer", traits=[ext.Pure]):
    """A tensor moved to another device; becomes a send and a receive.

    %b = "pcp.transfer"(%a)
        : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
    """

    operand: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        """The same tensor on two different devices."""
        source, target = self.operands[0].type, self.results[0].type
        for type_ in (source, target):
            require(isinstance(type_, On), f"moves placed tensors, not {type_}")
        what, where = (unwrap(source.payload), unwrap(target.payload))
        require(what == where, f"gives {where} for {what}; they must be equal")
        require(source.device != target.device, f"stays on {source.device}")


class Schedule(Op, name="schedule"):
    """Tasks and transfers; the order on a device is their order in the block.

    `kind` says which rule ordered them, `microbatches` how many pieces a batch
    is cut into. Placed values may be operands, or are read from around it as they are.

        %y = "pcp.schedule"(%x) ({
        ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
          %b = "pcp.transfer"(%a)
              : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
          "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @d1>) -> ()
        }) {kind = "gpipe", microbatches = 1}
            : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
    """

    inputs: Values
    kind: ir.StringAttr
    microbatches: ir.IntegerAttr
    body: ext.Region
    outputs: Results

    def check(self) -> None:
        """Tasks, transfers and a yield, and nothing else."""
        kind, known = text(self, "kind"), ", ".join(KINDS)
        require(kind in KINDS, f'kind is one of {known}, not "{kind}"')
        count = integer(self, "microbatches")
        require(count >= 1, f"cuts a batch into {count} pieces; at least 1")
        check_region(self, types_of(self.operands), types_of(self.results))
        for op in self.body.blocks[0].operations:
            name = op.operation.name
            require(name in PLACED, f"holds tasks and transfers only, not '{name}'")


def check_region(op: Op, takes: list[ir.Type], gives: list[ir.Type]) -> None:
    """The op's one block takes and yields these types."""
    require(len(op.body.blocks) == 1, "needs a region of one block")
    block = op.body.blocks[0]
    arguments = [a.type for a in block.arguments]
    require(
        arguments == takes,
        f"has a region of ({listed(arguments)}) for operands of ({listed(takes)})",
    )
    operations = list(block.operations)
    ends = operations and operations[-1].operation.name == "pcp.yield"
    require(ends, "needs a region that ends in pcp.yield")
    yielded = types_of(operations[-1].operands)
    require(
        yielded == gives, f"yields ({listed(yielded)}) for results of ({listed(gives)})"
    )


def listed(types: list[ir.Type]) -> str:
    """Types with commas between them."""
    return ", ".join(map(str, types))


def _on(type_: ir.Type, device: str, what: str) -> ir.Type:
    """The tensor type of what is placed on `device`."""
    require(isinstance(type_, On), f"has {what} that is not placed: {type_}")
    where = ir.FlatSymbolRefAttr(type_.device).value
    require(where == device, f"runs on @{device} and has {what} on @{where}")
    return unwrap(type_.payload)
