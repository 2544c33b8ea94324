"""A candidate made real: the passes run on a copy, for the members that differ."""

from dataclasses import dataclass, field
from typing import Any

from pcp.dialect.attributes import Split
from pcp.dialect.bindings import ir
from pcp.dialect.roles import LIKE_PARAMETERS, OF_PARAMETERS, parameter_of
from pcp.errors import PassError
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.passes.analysis.cluster import Cluster
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.analysis.memory import temporary_bytes
from pcp.passes.analysis.storage import Storage, value_bytes
from pcp.passes.collectives.bucket_collectives import BucketCollectives
from pcp.passes.collectives.overlap_collectives import (
    OverlapCollectives,
    usual_inflight,
)
from pcp.passes.core.functions import (
    KEPT,
    NAME,
    ROLE,
    argument_attributes,
    function_type,
    result_attributes,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of
from pcp.passes.pipeline.names import name_results
from pcp.passes.planning import cost
from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.cost import PlanCost
from pcp.passes.planning.tensor_groups import SEQUENCE, Groups
from pcp.passes.sharding.insert_reshards import InsertReshards
from pcp.passes.sharding.layout import to_attribute
from pcp.passes.sharding.mesh import only_mesh
from pcp.passes.sharding.one_owner import OneOwner
from pcp.passes.sharding.partition import Member as Part
from pcp.passes.sharding.plan import ShardingPlan
from pcp.passes.sharding.ports import port_shardings, set_port_shardings
from pcp.passes.sharding.propagate_sharding import PropagateSharding
from pcp.passes.sharding.zero import ShareUpdates, Zero
from pcp.passes.simplify.split_contractions import SplitContractions

MESH, BATCH = "mesh", "dp"

#: What runs in a step, by mode; the others are not judged.
STEPS = {"train": ("grad", "apply"), "grad": ("grad",), "forward": ()}

#: What runs between an island's rounds: it takes memory, and of a step no time.
BETWEEN = "outer_step"


@dataclass(frozen=True)
class Judged:
    """A candidate with what its program takes: the slowest and fullest members."""

    candidate: Candidate
    cost: PlanCost
    memory: float
    room: float
    """Bytes of the device that is nearest to being full."""
    fullest: str = ""
    held: dict[str, float] = field(default_factory=dict, compare=False)
    """Bytes by device, of those that differ."""
    alive: tuple[int, ...] = ()
    """The microbatches that each pipeline stage holds at once."""
    bubble: float = 0.0
    """The share of their time in which the devices of a pipeline wait."""

    @property
    def fits(self) -> bool:
        """Whether every member has the memory."""
        return self.memory <= self.room


# --- the candidate in the IR ---


def add_mesh(module: ir.Module, candidate: Candidate) -> None:
    """`@mesh` over the candidate's devices, with its split."""
    axes = ", ".join(f'#pcp.axis<"{a}", {n}>' for a, n in candidate.axes.items())
    devices = ", ".join(f"@{name}" for name in candidate.devices)
    facts = f'axes = [{axes}], devices = [{devices}], sym_name = "{MESH}"'
    with module.context, ir.Location.unknown():
        op = ir.Operation.parse(f'"pcp.mesh"() {{{facts}}} : () -> ()')
        if candidate.split:
            i64 = ir.IntegerType.get_signless(64)
            sizes = [ir.IntegerAttr.get(i64, n) for n in candidate.split]
            op.attributes["split"] = Split.get(
                ir.StringAttr.get(BATCH), ir.ArrayAttr.get(sizes)
            )
        ir.InsertionPoint.at_block_begin(module.body).insert(op)


def data_axes(candidate: Candidate) -> tuple[tuple[str, ...], ...]:
    """What cuts the first dimensions of data."""
    batch = (BATCH,) if candidate.dp > 1 else ()
    return (batch, (SEQUENCE,)) if candidate.sp > 1 else (batch,)


def annotate(module: ir.Module, candidate: Candidate, groups: Groups) -> None:
    """Write the layouts of all borders, cut by ZeRO where the candidate says so."""
    cut = {
        name: (dim, axis)
        for axis, _, group in candidate.cuts(groups)
        for name, dim in group.cut.items()
    }
    with module.context:
        for function in functions(module):
            if symbol_name(function) == "grad":
                name_results(function)
            for which in ("arg_attrs", "res_attrs"):
                _annotate(function, which, cut, data_axes(candidate))
    if candidate.zero and candidate.dp > 1:
        Zero(stage=candidate.zero).run(module)
    ShareUpdates().run(module)


def _annotate(
    function: ir.Operation,
    which: str,
    cut: dict[str, tuple[int, str]],
    data: tuple[tuple[str, ...], ...],
) -> None:
    type_ = function_type(function)
    is_input = which == "arg_attrs"
    ports = list(type_.inputs if is_input else type_.results)
    if not ports:
        return
    said = (argument_attributes if is_input else result_attributes)(function)
    given = port_shardings(function, which, len(ports))
    new: list[ir.Attribute | None] = []
    for port, facts, old in zip(ports, said, given, strict=True):
        shape = tuple(ir.RankedTensorType(port).shape)
        layout = _layout(facts, shape, cut, data)
        written = None if layout is None else to_attribute(layout, MESH)
        new.append(old if old is not None else written)
    set_port_shardings(function, which, new)


def _layout(
    facts: dict[str, Any],
    shape: tuple[int, ...],
    cut: dict[str, tuple[int, str]],
    data: tuple[tuple[str, ...], ...],
) -> Layout | None:
    """By role and name; None where it is to follow from the others."""
    name, role = string(facts, NAME) or "", string(facts, ROLE) or ""
    whole = Layout.replicated(len(shape))
    if role == "data":
        some = data[: len(shape)]
        return Layout((*some, *whole.dims[len(some) :]))
    if role in OF_PARAMETERS:
        name = name if name in cut else parameter_of(name)
    elif role not in LIKE_PARAMETERS:
        return whole if role == "loss" else None
    dim, axis = cut.get(name, (len(shape), ""))
    if dim >= len(shape):
        return whole
    dims = list(whole.dims)
    dims[dim] = (axis,)
    return Layout(tuple(dims))


# --- judging ---


def fullest(
    candidate: Candidate, found: PlanCost, held: dict[str, float], cluster: Cluster
) -> Judged:
    """Judged by what its devices hold."""
    rooms = {device: cluster.devices[device].memory for device in held}
    worst = max(held, key=lambda device: (held[device] / rooms[device], held[device]))
    return Judged(candidate, found, held[worst], rooms[worst], worst, held)


@dataclass(frozen=True)
class Judge:
    """Makes candidates of one program; `text` is the program, `mode` what it is for.

    `tied` lets two pipeline stages use one parameter.
    """

    text: str
    context: ir.Context
    mode: str
    cluster: Cluster
    groups: Groups
    bucket_bytes: int = 4 << 20
    tied: bool = False

    def spread(self, candidate: Candidate) -> ir.Module:
        """The program with the candidate's mesh and layouts."""
        with self.context:
            module = ir.Module.parse(self.text)
        add_mesh(module, candidate)
        annotate(module, candidate, self.groups)
        return module

    def judge(self, candidate: Candidate) -> Judged | None:
        """The candidate's cost, or None where its layouts are impossible."""
        module = self.spread(candidate)
        try:
            PropagateSharding().run(module)
            InsertReshards().run(module)
            OneOwner().run(module)
        except PassError as error:
            if "cannot be cut into" in str(error):
                return None
            raise
        costs: list[PlanCost] = []
        held: dict[str, float] = {}
        with self.context:
            mesh = only_mesh(module)
            plans = [
                ShardingPlan.read(function, mesh) for function in functions(module)
            ]
            working = self.cluster.among(candidate.devices)
            for place in _places(working, mesh, candidate):
                device = mesh.devices[mesh.members.index(place)]
                member = cost.PlannedMember(working, mesh, place)
                found, held[device] = self._member(plans, member, candidate.zero)
                costs.append(found)
        slowest = max(costs, key=lambda found: found.seconds)
        return fullest(candidate, slowest, held, self.cluster)

    def _member(
        self, plans: list[ShardingPlan], member: cost.PlannedMember, zero: int
    ) -> tuple[PlanCost, float]:
        """Cost and bytes held of one member's program."""
        with ir.Location.unknown():
            home = ir.Module.create()
        for plan in plans:
            with ir.InsertionPoint(home.body), plan.function.location:
                Part(member.mesh, member.place, plan).build()
        if member.mesh.size > 1:
            BucketCollectives(bytes=self.bucket_bytes).run(home)
            OverlapCollectives(inflight=usual_inflight(zero)).run(home)
        if not member.device.overlaps:
            SplitContractions().run(home)  # as a processor's targets do
        made = list(functions(home))
        total = PlanCost()
        for function in made:
            if symbol_name(function) != BETWEEN:
                total += cost.block_cost(block_of(function, 0), member)
        return total, step_bytes(made)


def _places(cluster: Cluster, mesh: Mesh, candidate: Candidate) -> list[dict[str, int]]:
    """One of the members that are alike: by device, and by share of the batch."""
    found: dict[tuple, dict[str, int]] = {}
    for place, name in zip(mesh.members, mesh.devices, strict=True):
        share = candidate.split[place[BATCH]] if candidate.split else 0
        found.setdefault((cluster.devices[name].facts, share), place)
    return list(found.values())


def step_bytes(made: list[ir.Operation]) -> float:
    """The most that is held in a step: what is kept, and the fullest function.

    `@apply` updates what it is given in place, but for what it gathers. The parts that
    it gives for that lie together with its other results, so that these hold them all
    until the next step's have come.
    """
    kept: dict[str, int] = {}
    own = []
    for function in made:
        block = block_of(function, 0)
        inside = 0
        for argument, said in zip(
            block.arguments, argument_attributes(function), strict=True
        ):
            role = string(said, ROLE) or "data"
            key = f"{role} {string(said, NAME)}"
            if role in KEPT:
                kept[key] = size_bytes(argument)
            else:
                inside += size_bytes(argument)
        if symbol_name(function) == BETWEEN:
            own.append(inside + _held_between(block))
            continue
        updates = symbol_name(function) == "apply"
        placed = [v for v in _returned(block) if updates and _in_place(v)]
        parts = _sent(block) if updates else []
        inside += sum(map(value_bytes, parts))
        inside += temporary_bytes(block, placed, parts)
        own.append(inside)
    return float(sum(kept.values()) + max(own, default=0))


def _held_between(block: ir.Block) -> int:
    """Of an outer step: all that is exchanged and given at once, nothing in between."""
    sent = [v for view in block.operations for v in _exchanged(view.operation)]
    return sum(map(value_bytes, [*sent, *_returned(block)]))


def _exchanged(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands) if op.name == "pcp.start" or cost.is_collective(op) else []


def _in_place(value: ir.Value) -> bool:
    """Whether a result takes its argument's place: what was gathered cannot."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return True
    if owner.name == "stablehlo.reshape":
        return _in_place(owner.operands[0])
    return not (owner.name == "pcp.wait" or cost.is_collective(owner))


def _sent(block: ir.Block) -> list[ir.Value]:
    """What is computed and then given to collectives."""
    storage = Storage.read(block)
    whole = storage.whole
    given = [x for node in whole.nodes if _exchanged(node.op) for x in node.operands]
    stored = dict.fromkeys(v for x in given for v in storage.behind[x])
    return [whole.values[v] for v in stored if v >= whole.arguments]


def _returned(block: ir.Block) -> list[ir.Value]:
    *_, end = block.operations
    return list(end.operation.operands)
