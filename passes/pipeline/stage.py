"""pcp-stage: a gradient function becomes tasks of stages and microbatches."""

from dataclasses import dataclass, replace
from math import inf

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import MODEL_STATE, parameter_of
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes.analysis.cluster import rate_of
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.core import functions as funcs
from pcp.passes.core.base import Pass
from pcp.passes.core.marks import MARK
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.pipeline.backward import assign_backward
from pcp.passes.pipeline.microbatches import is_fed, separate
from pcp.passes.pipeline.names import name_results
from pcp.passes.pipeline.once import assign_once
from pcp.passes.pipeline.stages import Homes, Wanted, assign
from pcp.passes.pipeline.tasks import build_schedule
from pcp.passes.sharding.inline_calls import inline_calls
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings

AXIS, MESH = "pp", "mesh"
BALANCES = ("time", "memory")

UNSTAGED = ("state", MODEL_STATE, "key", "metric")
"""Roles of what a model that is cut into stages does not have."""

_OF_FORWARD = ("result", "state")
"""Roles of the results of a function that only computes forward."""


@dataclass(frozen=True)
class Stage(Pass):
    """Cut functions into pipeline stages that run microbatch by microbatch.

    Assumes roles and static shapes, and for a gradient function what pcp-grad and
    pcp-simplify leave: the loss first, then gradients, in the parameters' order or
    named like them.
    Stages lie along the axis "pp" of the module's mesh; with `stages=N` a mesh is
    made. Without `func` every function is cut. The devices of one stage are those at
    one place along "pp": its tensors are cut between them along the mesh's other axes
    as `pcp.sharding` of the ports says, and sums over both microbatches and devices
    are made between devices once, behind the last microbatch. Each device talks with
    the ones of other stages at its own place. A function without data (@init, @apply)
    runs once; tensors in it lie on the stages that use their parameter. Those of one
    name lie alike in all functions. With `share-loss=true` all stages get the loss.

    Forward ops are cut where the integer attribute `pcp.stage` of an op or a call
    says, an unmarked one going with what it reads; without any, where the slowest
    stage is fastest (`balance=time`, by the devices' throughput) or the fullest one
    emptiest (`balance=memory`), within the devices' memory. Backward ops follow. A
    parameter belongs to one stage, unless `tied=true`.

    Microbatches add up what they made, and exchange nothing else; an op that needs
    more is an error. So is state, but for a forward function in one microbatch: it
    lies on the stage that reads it. `pcp.stage` of a result says which stage gets it.
    What joins the batch but is made of data alone (how many labels count) is no
    obstacle: each stage has all data, and makes it of that. So is a whole function of
    data alone, beside others that have parameters.

    Leaves a `pcp.schedule` in each function: tasks fwd, bwd, wgrad (what no other
    stage waits for) for each stage and microbatch, opt for what needs the sum over
    microbatches. The results are exactly those of the whole batch.

    Before:

        func.func @grad(%w: tensor<4xf32>, %x: tensor<8x4xf32>) -> (tensor<f32>, ...) {
          %h = stablehlo.tanh %x {pcp.stage = 0} : tensor<8x4xf32>

    After, of `microbatches=2`:

          %y:2 = "pcp.schedule"(%args) ({
            %h = "pcp.task"(%x) ({
            ^bb0(%0: tensor<8x4xf32>):
              %1 = stablehlo.slice %0 [0:4, 0:4]
              %2 = stablehlo.tanh %1 : tensor<4x4xf32>
              "pcp.yield"(%2) : (tensor<4x4xf32>) -> ()
            }) {device = @d0, dir = "fwd", microbatch = 0, stage = 0} : ...
    """

    name = "pcp-stage"
    func: str = ""
    stages: int = 0
    microbatches: int = 1
    balance: str = "time"
    tied: bool = False
    share_loss: bool = False

    def run(self, module: ir.Module) -> None:
        """Rewrite the functions in place."""
        with module.context:
            self._check()
            inline_calls(module)
            mesh = self._mesh(module)
            homes: Homes = {}
            wanted = self._wanted(module, mesh)
            for function in sorted(self._functions(module), key=_rank):
                _stage(function, wanted, mesh, homes)

    def _check(self) -> None:
        if self.balance not in BALANCES:
            raise PassError(
                f"{self.name}: balance={self.balance} is not one of "
                f"{', '.join(BALANCES)}.{nearest(self.balance, BALANCES)}"
            )
        if self.microbatches < 1 or self.stages < 0:
            raise PassError(f"{self.name}: stages and microbatches count from 1")

    def _functions(self, module: ir.Module) -> list[ir.Operation]:
        if not self.func:
            return list(functions(module))
        if (found := funcs.find(module, self.func)) is None:
            known = ", ".join(f"@{funcs.symbol_name(f)}" for f in functions(module))
            raise PassError(f"{self.name}: no function @{self.func} (has: {known})")
        return [found]

    def _mesh(self, module: ir.Module) -> Mesh:
        """The mesh of the stages."""
        meshes = read_meshes(module)
        if not meshes and self.stages:
            return _make_mesh(module, self.stages)
        where = location_string(module.operation.location)
        if len(meshes) != 1 or AXIS not in next(iter(meshes.values())).axes:
            raise PassError(
                f"{where}: {self.name}: stages lie on one pcp.mesh along its axis "
                f'"{AXIS}"; make it so, or say stages=N in a module without a mesh'
            )
        (mesh,) = meshes.values()
        if self.stages not in (0, mesh.axes[AXIS]):
            raise PassError(
                f"{where}: {self.name}: stages={self.stages}, and mesh @{mesh.name} "
                f"has {mesh.axes[AXIS]} along {AXIS}; leave stages out"
            )
        return mesh

    def _wanted(self, module: ir.Module, mesh: Mesh) -> Wanted:
        described = {
            funcs.symbol_name(op): op.operation
            for op in module.body.operations
            if op.operation.name == "pcp.device"
        }
        rows = [
            [described.get(d) for d in _row(mesh, stage)]
            for stage in range(mesh.axes[AXIS])
        ]
        return Wanted(
            stages=mesh.axes[AXIS],
            balance=self.balance,
            tied=self.tied,
            microbatches=self.microbatches,
            speeds=_speeds(rows, mesh),
            room=[min(map(_room, row)) for row in rows],
            shared_loss=self.share_loss,
            state=_state_bytes(module, mesh),
        )


def _row(mesh: Mesh, stage: int) -> list[str]:
    """The devices of a stage."""
    return [
        device
        for place, device in zip(mesh.members, mesh.devices, strict=True)
        if place[AXIS] == stage
    ]


def _state_bytes(module: ir.Module, mesh: Mesh) -> dict[str, float]:
    """Bytes of optimizer state that go with each parameter on a device, by name."""
    sizes = {}
    for function in functions(module):
        arguments = funcs.entry(function).arguments
        shardings = port_shardings(function, "arg_attrs", len(arguments))
        for argument, said, sharding in zip(
            arguments, funcs.argument_attributes(function), shardings, strict=True
        ):
            if funcs.string(said, funcs.ROLE) == "state":
                axes = from_attribute(sharding).axes if sharding is not None else ()
                name = funcs.string(said, funcs.NAME) or ""
                sizes[name] = size_bytes(argument) / mesh.count(axes)
    total: dict[str, float] = {}
    for name, size in sizes.items():
        parameter = parameter_of(name)
        total[parameter] = total.get(parameter, 0.0) + size
    return total


def _rank(function: ir.Operation) -> tuple[bool, int]:
    """Gradients say where parameters lie, then losses; others follow."""
    return not is_fed(function), -len(funcs.function_type(function).results)


def _stage(function: ir.Operation, wanted: Wanted, mesh: Mesh, homes: Homes) -> None:
    """Separate, assign, build."""
    others = {axis: size for axis, size in mesh.axes.items() if axis != AXIS}
    within = replace(mesh, axes=others, devices=())
    if is_fed(function) and not (homes and _is_of_data_alone(function)):
        _check_carried(function, wanted.microbatches)
        name_results(function)
        separated = separate(function, wanted.microbatches, within)
        stages = assign(separated, wanted, homes)
        assign_backward(stages)
    elif not homes:
        refuse(function, "no argument has the role data and a batch to cut")
    else:
        separated = separate(function, 1, within)
        unlike = AXIS in mesh.unlike
        stages = assign_once(separated.flow, wanted.stages, homes, unlike=unlike)
    made = build_schedule(function, separated, stages, mesh, AXIS)
    made.walk(_unmark)


def _is_of_data_alone(function: ir.Operation) -> bool:
    """Whether nothing that it reads lies on a stage."""
    given = funcs.argument_attributes(function)
    return all(funcs.string(said, funcs.ROLE) == "data" for said in given)


def _check_carried(function: ir.Operation, microbatches: int) -> None:
    """Stages hand on activations and gradients, and nothing from piece to piece.

    State of a function that computes a batch as one piece is not handed on.
    """
    given, gives = (
        funcs.argument_attributes(function),
        funcs.result_attributes(function),
    )
    forward = all(funcs.string(said, funcs.ROLE) in _OF_FORWARD for said in gives)
    whole = _OF_FORWARD if forward and microbatches == 1 else ()
    for said in (*given, *gives):
        role, name = (funcs.string(said, key) for key in (funcs.ROLE, funcs.NAME))
        if role in UNSTAGED and role not in whole:
            refuse(
                function,
                f"has {role.replace('_', ' ')} {name!r}, which pipeline stages do not "
                "carry from one microbatch to the next; leave pp out of the mesh",
            )


def _unmark(op: ir.Operation) -> ir.WalkResult:
    """Marks have done their work; an op's hash counts them, so not before."""
    if MARK in op.attributes:
        del op.attributes[MARK]
    return ir.WalkResult.ADVANCE


def _make_mesh(module: ir.Module, stages: int) -> Mesh:
    axes = f'axes = [#pcp.axis<"{AXIS}", {stages}>], devices = []'
    text = f'"pcp.mesh"() {{{axes}, sym_name = "{MESH}"}} : () -> ()'
    with ir.Location.unknown():
        op = ir.Operation.parse(text)
    ir.InsertionPoint.at_block_begin(module.body).insert(op)
    return read_meshes(module)[MESH]


def _speeds(rows: list[list[ir.Operation | None]], mesh: Mesh) -> list[float]:
    """How fast each stage is: its slowest device counts for all where work is equal.

    Equal where somebody does not say.
    """
    known = [[_speed(device) for device in row] for row in rows]
    if any(not speed for row in known for speed in row):
        return [1.0] * len(rows)
    join = sum if mesh.weights else min
    return [join(speed for speed in row if speed) for row in known]


def _speed(device: ir.Operation | None) -> float | None:
    """Operations a second in the type that the device multiplies in, if it says so."""
    said = device is not None and "throughput" in device.attributes
    return rate_of(device) if said else None


def _room(device: ir.Operation | None) -> float:
    """Bytes the device has; no bound where nobody says."""
    if device is None or "memory" not in device.attributes:
        return inf
    return float(ir.IntegerAttr(device.attributes["memory"]).value)
