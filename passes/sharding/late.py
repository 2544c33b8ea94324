"""Parameters gathered late, and again: whole copies live for a layer's time."""

from dataclasses import dataclass, field
from math import prod

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.functions import ROLE
from pcp.passes.core.walk import block_of, element_width
from pcp.passes.sharding import resharding
from pcp.passes.sharding.layout import Layout

#: On a reshard, and on the all_gather that it becomes: not before its turn.
LATE = "late"

#: On a module: `regather` of pcp-insert-reshards, as the pass before asks for it.
REGATHER = "pcp.regather"

#: Ops that only put a tensor's elements elsewhere.
MOVES_ONLY = ("stablehlo.transpose", "stablehlo.reshape", "stablehlo.convert")

#: A copy of fewer bytes than this is kept: it is not worth another message.
SMALL_BYTES = 4096

#: A value, how a copy of it lies, and where the copy can be used.
Copy = tuple[ir.Value, Layout, ir.Block]


def parameters(function: ir.Operation) -> list[ir.Value]:
    """The arguments whose role is `param`."""
    arguments = block_of(function, 0).arguments
    if "arg_attrs" not in function.attributes:
        return []
    said = map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"]))
    return [
        argument
        for argument, entry in zip(arguments, said, strict=True)
        if ROLE in entry and ir.StringAttr(entry[ROLE]).value == "param"
    ]


@dataclass
class Late:
    """Which whole copies of parameters are worth making again."""

    mesh: Mesh
    parameters: list[ir.Value]
    gathered: int = 0
    #: What had been gathered when each copy was made, itself included; bytes.
    seen: dict[Copy, int] = field(default_factory=dict)

    def covers(self, value: ir.Value, old: Layout, new: Layout) -> bool:
        """Whether this reshard only gathers a parameter of some size."""
        if _bytes(value) < SMALL_BYTES or not self._is_parameter(value):
            return False
        shape = tuple(ir.RankedTensorType(value.type).shape)
        steps = resharding.steps(old, new, shape, self.mesh)
        return {step.kind for step in steps} == {"all_gather"}

    def _is_parameter(self, value: ir.Value) -> bool:
        """An argument, or one with its elements in another order."""
        while not isinstance(value.owner, ir.Block):
            if value.owner.name not in MOVES_ONLY:
                return False
            value = value.owner.operands[0]
        return value in self.parameters

    def made(self, copy: Copy) -> None:
        """Note that the copy is made now."""
        self.gathered += _bytes(copy[0])
        self.seen[copy] = self.gathered

    def is_stale(self, copy: Copy) -> bool:
        """Whether as much has been gathered since the copy was made."""
        made = self.seen.get(copy)
        return made is not None and self.gathered - made >= _bytes(copy[0])


def _bytes(value: ir.Value) -> int:
    return prod(ir.RankedTensorType(value.type).shape) * element_width(value)
