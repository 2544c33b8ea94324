"""How long a device's program takes, and what it sends.

Work goes by the roofline (Williams et al. 2009): operations at the measured rate of
their type plus bytes at the memory's, and an overhead for each dispatch. Collectives
go by alpha and beta over the slowest link of their group (Thakur et al. 2005): a
ring's 2(k-1) steps for a sum, one message to each member where all speak directly.
To that comes what handing over to the wire takes in a program: each time, and by
bytes. A started collective runs beside the work until it is waited for, unless the
device is a processor, whose cores move the bytes themselves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pcp.dialect.base import strings
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.analysis.cluster import Cluster, Device, Link
from pcp.passes.analysis.cost import (
    flops,
    read_bytes,
    size_bytes,
    update_of,
    written_bytes,
)
from pcp.passes.analysis.in_place import stacks_of
from pcp.passes.analysis.loops import trips
from pcp.passes.analysis.memory import exchanges
from pcp.passes.analysis.storage import Storage
from pcp.passes.core.rewriting import HOLD
from pcp.passes.core.walk import CONTROL_FLOW
from pcp.wire import EAGER_BYTES, FEW_MEMBERS

#: Operations an element costs where it is not one.
_SLOW = frozenset(
    f"stablehlo.{name}"
    for name in (
        "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic "
        "power sine tan tanh"
    ).split()
)
SLOW_FLOPS = 20

#: The values of a block that have memory.
Stored = Collection[ir.Value]

TERMINATORS = ("func.return", "stablehlo.return", "pcp.yield")


@dataclass(frozen=True)
class PlanCost:
    """Seconds of work and of waiting for others, bytes sent, of one member."""

    compute: float = 0.0
    waiting: float = 0.0
    sent: float = 0.0

    @property
    def seconds(self) -> float:
        """From the first op to the last."""
        return self.compute + self.waiting

    def __add__(self, other: "PlanCost") -> "PlanCost":
        return PlanCost(
            self.compute + other.compute,
            self.waiting + other.waiting,
            self.sent + other.sent,
        )


# --- collectives ---


def sent_bytes(kind: str, members: int, given: float, result: float) -> float:
    """Bytes that a member sends; `given` and `result` are its tensors' bytes."""
    k = members
    match kind:
        case "all_reduce":
            return 2 * (k - 1) / k * given
        case "reduce_scatter" | "all_to_all":
            return (k - 1) / k * given
        case "all_gather":
            return max(0.0, result - given) if k > 1 else 0.0
        case "recv":
            return 0.0
    return given  # permute, broadcast, send


def wire_seconds(
    kind: str, members: int, given: float, result: float, link: Link
) -> float:
    """How long a collective takes over a link."""
    k = members
    steps = {"all_reduce": 2 * (k - 1), "reduce_scatter": k - 1}.get(kind, 1)
    bytes_ = sent_bytes(kind, k, given, result)
    if kind == "all_reduce" and given <= EAGER_BYTES:
        few, along_tree = k <= FEW_MEMBERS, 2 * (k - 1).bit_length()
        steps, bytes_ = (
            (1, (k - 1) * given) if few else (along_tree, along_tree * given)
        )
    if kind == "recv":
        bytes_ = result
    return steps * link.latency + bytes_ / link.bandwidth


def exchange_seconds(given: float, result: float, device: Device) -> float:
    """What a collective takes besides the wire: handing over, copies in and out."""
    return device.exchange + (given + result) / device.exchange_bw


# --- work ---


def op_flops(op: ir.Operation) -> float:
    """Operations of one op; a transcendental function counts as several."""
    return flops(op) * (SLOW_FLOPS if op.name in _SLOW else 1)


def rate_of(op: ir.Operation, device: Device) -> float:
    """The device's rate for an op: of its element type if it contracts, else the best.

    What maps and moves is bound by memory, so its type's rate is not needed.
    """
    if op.name in ("stablehlo.dot_general", "stablehlo.convolution"):
        return device.rate(str(ir.RankedTensorType(op.operands[0].type).element_type))
    return max(device.throughput.values())


def op_seconds(op: ir.Operation, stored: Stored, device: Device) -> float:
    """The roofline's time of one op that is no control flow."""
    made = [i for i, r in enumerate(op.results) if r in stored]
    moved = sum(written_bytes(op, i) for i in made)
    for i, operand in enumerate(op.operands):
        if operand in stored:
            moved += read_bytes(op, i)
    moved += sum(_copied_bytes(op, i, stored) for i in made)
    seconds = op_flops(op) / rate_of(op, device) + moved / device.membw
    return seconds + (device.overhead if made else 0.0)


def _copied_bytes(op: ir.Operation, index: int, stored: Stored) -> int:
    """What an update makes first of a tensor that it cannot change in place.

    Another op reads that, too, or it is no more than a constant or a map, or a carry
    that does not stay where it is: IREE copies these in every round.
    """
    if (update := update_of(op, index)) is None:
        return 0
    operand, whole = op.operands[index], size_bytes(op.results[index])
    if (loop := _carrier(operand)) is not None:
        place = ir.BlockArgument(operand).arg_number
        return 0 if place in stacks_of(loop) else 2 * whole
    if operand not in stored:
        return whole - size_bytes(update)
    alone = sum(1 for _ in operand.uses) == 1
    return 0 if alone else 2 * whole


def _carrier(value: ir.Value) -> ir.Operation | None:
    """The loop whose body is given it."""
    block = value.owner
    if isinstance(block, ir.Block) and block.owner.name == "stablehlo.while":
        return block.owner.operation
    return None


# --- a block ---


@dataclass
class _Clock:
    """Two resources, the device and its wire; they meet where one waits."""

    work: float = 0.0
    now: float = 0.0
    wire: float = 0.0

    def compute(self, seconds: float) -> None:
        self.work += seconds
        self.now += seconds

    def start(self, seconds: float) -> float:
        """Put a collective on the wire; when it will be over."""
        self.wire = max(self.wire, self.now) + seconds
        return self.wire

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


@dataclass(frozen=True)
class PlannedMember:
    """Whose time it is: a device at a place of a mesh."""

    cluster: Cluster
    mesh: Mesh
    place: dict[str, int]

    @property
    def device(self) -> Device:
        """The device of the place."""
        return self.cluster.devices[self.mesh.devices[self._rank]]

    @property
    def _rank(self) -> int:
        return self.mesh.members.index(self.place)

    @classmethod
    def alone(cls, device: Device) -> "PlannedMember":
        """Of a mesh of one."""
        mesh = Mesh("mesh", {"dp": 1}, (device.name,))
        return cls(Cluster({device.name: device}, {}), mesh, mesh.members[0])

    def group(self, axes: Sequence[str]) -> list[str]:
        """The devices that differ from it along `axes` only."""
        return [
            device
            for device, other in zip(self.mesh.devices, self.mesh.members, strict=True)
            if all(other[a] == self.place[a] for a in self.mesh.axes if a not in axes)
        ]


@dataclass
class Walk:
    """Goes through ops in order on both resources of a member."""

    member: PlannedMember
    stored: Stored
    clock: _Clock = field(default_factory=_Clock)
    sent: float = 0.0
    _ends: dict[ir.Value, float] = field(default_factory=dict)

    @property
    def cost(self) -> PlanCost:
        """What all ops so far take."""
        clock = self.clock
        return PlanCost(clock.work, max(clock.now, clock.wire) - clock.work, self.sent)

    def op(self, op: ir.Operation) -> None:
        """Go past the next op."""
        clock = self.clock
        if op.name in CONTROL_FLOW:
            inner = _control_flow(op, self.member)
            clock.compute(inner.compute)
            clock.wait(clock.now + inner.waiting)
            self.sent += inner.sent
        elif op.name == "pcp.start":
            self._ends[op.results[0]] = end = self._exchange(_started(op))
            if not self.member.device.overlaps:
                clock.wait(end)
        elif op.name == "pcp.wait":
            clock.wait(self._ends[op.operands[0]])
        elif is_collective(op):
            clock.wait(self._exchange(op))
        elif op.name not in (*TERMINATORS, HOLD):
            clock.compute(op_seconds(op, self.stored, self.member.device))

    def _exchange(self, op: ir.Operation) -> float:
        """Put a collective on the wire; when it will be over."""
        seconds, bytes_ = collective(op, self.member)
        self.sent += bytes_
        return self.clock.start(seconds)


def block_cost(block: ir.Block, member: PlannedMember) -> PlanCost:
    """What a block's ops take in their order."""
    walk = Walk(member, Storage.read(block).stored)
    for view in block.operations:
        walk.op(view.operation)
    return walk.cost


def _control_flow(op: ir.Operation, member: PlannedMember) -> PlanCost:
    """A loop's rounds, or the longest branch."""
    costs = [block_cost(region.blocks[0], member) for region in op.regions]
    if op.name == "stablehlo.while":
        once = costs[0] + costs[1]
        count = trips(op)
        return PlanCost(count * once.compute, count * once.waiting, count * once.sent)
    return max(costs, key=lambda cost: cost.seconds)


def is_collective(op: ir.Operation) -> bool:
    """Whether it goes over the wire."""
    return op.name in ("pcp.send", "pcp.recv") or exchanges(op)


def collective(op: ir.Operation, member: PlannedMember) -> tuple[float, float]:
    """(seconds, bytes sent) of one collective."""
    kind = op.name.removeprefix("pcp.")
    axes = strings(op, "axes") if "axes" in op.attributes else list(member.mesh.axes)
    group = member.group(axes)
    given = float(sum(size_bytes(v) for v in op.operands))
    result = float(sum(size_bytes(v) for v in op.results))
    if "wire" in op.attributes:
        width = _wire_share(op)
        given, result = given * width, result * width
    if len(group) < 2:
        return 0.0, 0.0
    link = member.cluster.slowest(group)
    seconds = wire_seconds(kind, len(group), given, result, link)
    seconds += exchange_seconds(given, result, member.device)
    return seconds, sent_bytes(kind, len(group), given, result)


def _started(op: ir.Operation) -> ir.Operation:
    return op.regions[0].blocks[0].operations[0].operation


def _wire_share(op: ir.Operation) -> float:
    """How much narrower the wire type is than the tensor's."""
    wire = ir.TypeAttr(op.attributes["wire"]).value
    return wire.width / ir.RankedTensorType(op.operands[0].type).element_type.width
