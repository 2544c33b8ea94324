"""A training bundle of a mesh, run and measured as one process for each device.

What `zero_memory.py` and `uneven.py` share: a deep residual network to train, and
members that report the bytes on their device and the seconds of their steps.
"""

import multiprocessing
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

DEADLINE_S = 300


@dataclass(frozen=True)
class Report:
    """What one member saw: bytes, the seconds of each step, losses."""

    held: int
    peak: int
    seconds: list[float]
    losses: list[float]


def network(layers: int, width: int, hidden: int, batch: int, mesh: str = "") -> str:
    """The loss of a residual network with names and roles, after `mesh`'s text."""
    params, body, value = [], [], "%x"
    shape = f"tensor<{batch}x{width}xf32>"
    up, down = f"tensor<{width}x{hidden}xf32>", f"tensor<{hidden}x{width}xf32>"
    inner = f"tensor<{batch}x{hidden}xf32>"
    for i in range(layers):
        for name, type_ in ((f"up{i}", up), (f"down{i}", down)):
            roles = f'{{pcp.name = "{name}", pcp.role = "param"}}'
            params.append(f"%{name}: {type_} {roles}")
        body += [
            f"%a{i} = stablehlo.dot_general {value}, %up{i}, contracting_dims = [1] x "
            f"[0] : ({shape}, {up}) -> {inner}",
            f"%t{i} = stablehlo.tanh %a{i} : {inner}",
            f"%d{i} = stablehlo.dot_general %t{i}, %down{i}, contracting_dims = [1] x "
            f"[0] : ({inner}, {down}) -> {shape}",
            f"%x{i} = stablehlo.add {value}, %d{i} : {shape}",
        ]
        value = f"%x{i}"
    data = [f'%{n}: {shape} {{pcp.name = "{n}", pcp.role = "data"}}' for n in "xy"]
    return f"""{mesh}
func.func @main({", ".join(params + data)}) -> tensor<f32> {{
  {chr(10).join(body)}
  %e = stablehlo.subtract {value}, %y : {shape}
  %s = stablehlo.multiply %e, %e : {shape}
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0, 1]
    : ({shape}, tensor<f32>) -> tensor<f32>
  %n = stablehlo.constant dense<{float(batch * width)}> : tensor<f32>
  %l = stablehlo.divide %r, %n : tensor<f32>
  return %l : tensor<f32>
}}
"""


def compile_bundle(text: str, folder: Path, name: str, flags: list[str]) -> Path:
    """The training bundle of a model's text; raises what pcp-compile says."""
    from pcp.tools import compile

    model, bundle = folder / f"{name}.mlir", folder / f"{name}.pcp"
    model.write_text(text)
    flags = [*flags, "--target", "cpu:host", "--mode", "train", "--algorithm", "none"]
    code = compile.main([str(model), *flags, "--cache", "off", "-q", "-o", str(bundle)])
    if code:
        raise SystemExit(code)
    return bundle


def run_members(
    bundle: Path, steps: int, slow: dict[int, float] | None = None
) -> list[Report]:
    """Train for some steps with a process for each device, or one; rank -> report.

    A member of `slow` works on after each step until it has used that many times the
    processor's seconds that the step cost it. Unlike a pause this slows it down as
    much on a machine that does other work too. Where `slow` is given the device keeps
    buffers for their next use, and the report's peak says nothing of programs.
    """
    from pcp.bundle import Bundle

    count = Bundle.read(bundle).manifest.worker_mesh().size
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(count)]
    members = [
        context.Process(
            target=_member,
            args=(str(bundle), rank, steps, slow and slow.get(rank, 1.0), pipe[1]),
        )
        for rank, pipe in enumerate(pipes)
    ]
    try:
        for member in members:
            member.start()
        address = _receive(pipes[0][0])
        for ours, _ in pipes[1:]:
            ours.send(address)
        return [_receive(ours) for ours, _ in pipes]
    finally:
        for member in members:
            member.join(10)
            if member.is_alive():
                member.kill()
                member.join()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE_S):
        raise TimeoutError(f"a member said nothing for {DEADLINE_S} s")
    return pipe.recv()


def _member(
    path: str, rank: int, steps: int, slowness: float | None, pipe: Connection
) -> None:
    from pcp.bundle import Bundle
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.program.devices import Device
    from pcp.runtime.program.executor import Program
    from pcp.runtime.program.mesh_groups import MeshGroups
    from pcp.training.trainer.step_loop import Steps

    bundle = Bundle.read(path)
    manifest = bundle.manifest
    mesh = manifest.worker_mesh()
    meeting: Any = Rendezvous.listen("127.0.0.1:0") if rank == 0 else pipe.recv()
    if rank == 0:
        pipe.send(meeting.address)
    world = Communicator.connect(meeting, rank=rank, world_size=mesh.size, timeout=120)
    device = Device("local-sync", caching=slowness is not None)
    with world:
        groups = MeshGroups.of(world, manifest) if manifest.programs else None
        program = Program.load(bundle, device, communicator=groups)
        training = Steps(program, manifest, mesh, mesh.members[rank])
        training.start(0, _values(manifest, ("param", "state")))
        batch = _values(manifest, ("data",))
        seconds, losses = [], []
        for _ in range(steps):
            began, worked = time.perf_counter(), time.process_time()
            losses.append(float(training.step(batch)))
            work_on(worked + (slowness or 1) * (time.process_time() - worked))
            seconds.append(time.perf_counter() - began)
        world.barrier(tag="done")
        peak = device.hal.allocator.statistics["device_bytes_peak"]
        pipe.send(Report(training.nbytes, peak, seconds, losses))
        training.close()
        program.close()
        if groups is not None:
            groups.close()


def work_on(until: float) -> None:
    """Use the processor until the process has had that many seconds of it."""
    while time.process_time() < until:
        pass


def _values(manifest: Any, roles: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The same small normal numbers everywhere; zeros for the optimizer's state."""
    random = np.random.default_rng(0)
    found = {}
    for name in ("grad", "apply"):
        for spec in manifest.function(name).inputs:
            if spec.role not in roles or spec.name in found:
                continue
            integer = spec.dtype.startswith("i")
            value = np.zeros(spec.shape, np.int32 if integer else np.float32)
            if spec.role != "state":
                value = random.normal(0, 0.05, spec.shape).astype(np.float32)
            found[spec.name] = value
    return found


if __name__ == "__main__":
    sys.exit("this is a part of zero_memory.py and uneven.py; run one of these")
