"""What guesses need to know of a program: numbers of its forward function."""

from dataclasses import dataclass, field
from functools import cached_property

from pcp.dialect.bindings import ir
from pcp.passes.analysis.cluster import Device
from pcp.passes.analysis.cost import size_bytes, work
from pcp.passes.analysis.loops import trips
from pcp.passes.analysis.storage import Storage
from pcp.passes.core.functions import NAME, ROLE, argument_attributes, string
from pcp.passes.core.walk import CONTROL_FLOW, block_of
from pcp.passes.planning.cost import PlannedMember, block_cost


@dataclass(frozen=True)
class ModelSize:
    """A program's forward function, its mode, and what these take."""

    function: ir.Operation
    mode: str
    batch: int
    slots: int
    """Tensors of the optimizer's state for each parameter."""
    _seconds: dict[tuple, float] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        return sum(
            size_bytes(argument)
            for argument, said in zip(
                self._block.arguments, argument_attributes(self.function), strict=True
            )
            if string(said, ROLE) == "param"
        )

    @cached_property
    def data(self) -> dict[str, int]:
        """The tensors with a batch, by name; their ranks."""
        said = argument_attributes(self.function)
        return {
            string(facts, NAME) or f"arg{i}": ir.RankedTensorType(argument.type).rank
            for i, (argument, facts) in enumerate(
                zip(self._block.arguments, said, strict=True)
            )
            if (string(facts, ROLE) or "data") == "data"
            and ir.RankedTensorType(argument.type).rank
        }

    @property
    def activations(self) -> int:
        """Bytes that the forward stores, in every round of a loop."""
        return self._kept[0]

    @cached_property
    def work(self) -> float:
        """Operations and weighed bytes of the forward."""
        return sum(work(view.operation) for view in self._block.operations)

    def seconds(self, device: Device) -> float:
        """The whole forward on one device."""
        if device.facts not in self._seconds:
            found = block_cost(self._block, PlannedMember.alone(device))
            self._seconds[device.facts] = found.compute
        return self._seconds[device.facts]

    @property
    def dispatches(self) -> int:
        """How many results of the forward are stored."""
        return self._kept[1]

    @property
    def boundary(self) -> float:
        """Bytes that go from one pipeline stage to the next, about."""
        return self.activations / max(1, self.dispatches)

    @cached_property
    def _kept(self) -> tuple[int, int]:
        return _stored(self._block)

    @property
    def _block(self) -> ir.Block:
        return block_of(self.function, 0)


def _stored(block: ir.Block) -> tuple[int, int]:
    """Bytes and number of the results that a block's ops store."""
    stored = Storage.read(block).stored
    bytes_ = count = 0
    for op in (view.operation for view in block.operations):
        made = [r for r in op.results if r in stored]
        bytes_ += sum(map(size_bytes, made))
        count += len(made)
        if op.name in CONTROL_FLOW:
            *_, body = sorted(_stored(region.blocks[0]) for region in op.regions)
            times = trips(op) if op.name == "stablehlo.while" else 1
            bytes_, count = bytes_ + times * body[0], count + times * body[1]
    return bytes_, count
