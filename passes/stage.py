"""pcp-stage: a gradient function becomes tasks of stages and microbatches."""

from dataclasses import dataclass
from math import inf

from pcp.dialect.base import as_number
from pcp.dialect.bindings import ir
from pcp.dialect.context import location_string
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes import functions as funcs
from pcp.passes.base import Pass
from pcp.passes.pipeline.backward import assign_backward
from pcp.passes.pipeline.flow import Flow
from pcp.passes.pipeline.microbatches import separate
from pcp.passes.pipeline.names import name_results
from pcp.passes.pipeline.stages import MARK, Wanted, assign
from pcp.passes.pipeline.tasks import build_schedule
from pcp.passes.propagate_sharding import inline_calls
from pcp.passes.rewriting import functions
from pcp.passes.sharding.mesh import read_meshes

AXIS, MESH = "pp", "mesh"
BALANCES = ("time", "memory")


@dataclass(frozen=True)
class Stage(Pass):
    """Cut functions into pipeline stages that run microbatch by microbatch.

    Assumes roles and static shapes, and for a gradient function what pcp-grad and
    pcp-simplify leave: the loss first, then gradients, in the parameters' order or
    named like them.
    Stage s runs on device s of the module's mesh, which has the one axis "pp"; with
    `stages=N` a mesh is made. Without `func` every function is cut.

    Forward ops are cut where the integer attribute `pcp.stage` says, an unmarked one
    going with what it reads; without any, where the slowest stage is fastest
    (`balance=time`, by the devices' throughput) or the fullest one emptiest
    (`balance=memory`), within the devices' memory. Backward ops follow. A parameter
    belongs to one stage, unless `tied=true`.

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

    def run(self, module: ir.Module) -> None:
        """Rewrite the functions in place."""
        with module.context:
            self._check()
            inline_calls(module)
            mesh = self._mesh(module)
            for function in self._functions(module):
                _stage(function, self._wanted(module, mesh), mesh)

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
        if len(meshes) != 1 or set(next(iter(meshes.values())).axes) != {AXIS}:
            raise PassError(
                f"{where}: {self.name}: stages lie on one pcp.mesh whose only axis is "
                f'"{AXIS}"; make it so, or say stages=N in a module without a mesh'
            )
        (mesh,) = meshes.values()
        if self.stages not in (0, mesh.size):
            raise PassError(
                f"{where}: {self.name}: stages={self.stages}, and mesh @{mesh.name} "
                f"has {mesh.size} devices; leave stages out"
            )
        return mesh

    def _wanted(self, module: ir.Module, mesh: Mesh) -> Wanted:
        described = {
            funcs.symbol_name(op): op.operation
            for op in module.body.operations
            if op.operation.name == "pcp.device"
        }
        devices = [described.get(device) for device in mesh.devices]
        speeds = [_speed(device) for device in devices]
        known = all(speed is not None for speed in speeds)
        return Wanted(
            stages=mesh.size,
            balance=self.balance,
            tied=self.tied,
            microbatches=self.microbatches,
            speeds=[s if known and s else 1.0 for s in speeds],
            room=[_room(device) for device in devices],
        )


def _stage(function: ir.Operation, wanted: Wanted, mesh: Mesh) -> None:
    """Separate, assign, build."""
    name_results(function)
    separated = separate(function, wanted.microbatches)
    flow = Flow.read(separated.function, separated.partial)
    stages = assign(flow, wanted)
    assign_backward(stages)
    made = build_schedule(function, separated, stages, mesh.devices)
    made.walk(_unmark)


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


def _speed(device: ir.Operation | None) -> float | None:
    """Operations a second in f32, if the device says so."""
    if device is None or "throughput" not in device.attributes:
        return None
    said = {e.name: e.attr for e in ir.DictAttr(device.attributes["throughput"])}
    return as_number(said["f32"], "throughput") if "f32" in said else None


def _room(device: ir.Operation | None) -> float:
    """Bytes the device has; no bound where nobody says."""
    if device is None or "memory" not in device.attributes:
        return inf
    return float(ir.IntegerAttr(device.attributes["memory"]).value)
