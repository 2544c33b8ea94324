"""Two processes that train one GPT data parallel: pcp's mesh, and PyTorch's DDP.

Contestants of `benchmarks/step.py --processes 2`. Each process has one thread and half
of the batch; gradients travel over TCP on loopback, by Gloo for DDP. The contestant's
process is rank 0 and starts the other one, which steps whenever rank 0 does: a step's
sums wait for both.
"""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contestants import (
    COMPARED,
    Size,
    Step,
    compiled,
    exported,
    load,
    torch_adamw,
    torch_module,
)

PROCESSES = 2
TIMEOUT_S = 120

Build = Callable[[Path, Size, int, Connection], Step]


def as_rank_0(build: Build, folder: Path, size: Size) -> Step:
    """Start rank 1, which steps until it is ended, and build rank 0's step."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (build, folder, size, theirs)
    context.Process(target=_rank_1, args=arguments, daemon=True).start()
    return build(folder, size, 0, ours)


def _rank_1(build: Build, folder: Path, size: Size, pipe: Connection) -> None:
    sys.stdout = sys.stderr
    step = build(folder, size, 1, pipe)
    try:
        while True:
            step()
    except Exception as error:  # rank 0 has ended, which ends its connections
        print(f"rank 1 ends: {type(error).__name__}", file=sys.stderr)


def pcp_mesh(folder: Path, size: Size, rank: int, pipe: Connection) -> Step:
    """The bundle's program of one member of the mesh dp=2."""
    from pcp.bundle import Bundle
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.program.devices import Device
    from pcp.runtime.program.executor import Program
    from pcp.runtime.program.mesh_groups import MeshGroups
    from pcp.training.trainer.step_loop import Steps, loss_value

    bundle = Bundle.read(folder / "mesh.pcp")
    manifest, mesh = bundle.manifest, bundle.manifest.partition_mesh()
    meeting: Any = Rendezvous.listen("127.0.0.1:0") if rank == 0 else pipe.recv()
    if rank == 0:
        pipe.send(meeting.address)
    world = Communicator.connect(
        meeting, rank=rank, world_size=PROCESSES, timeout=TIMEOUT_S
    )
    groups = MeshGroups.of(world, manifest)
    program = Program.load(
        bundle, Device("local-sync", caching=True), communicator=groups
    )
    training = Steps(program, manifest, mesh, mesh.members[rank])
    weights, ids, targets = load(folder)
    training.start(0, weights)
    data = [t.name for t in manifest.function("grad").inputs if t.role == "data"]
    batch = dict(zip(data, (ids, targets), strict=True))
    return lambda: loss_value([training.step(batch)])


def torch_ddp(folder: Path, size: Size, rank: int, _: Connection) -> Step:
    """DistributedDataParallel over Gloo, and the fused AdamW."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    meeting = f"file://{folder / 'ddp'}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=PROCESSES
    )
    model = DistributedDataParallel(torch_module(folder, size))
    optimizer = torch_adamw(model.parameters())
    ids, targets = load(folder)[1:]
    half = len(ids) // PROCESSES
    mine = slice(rank * half, (rank + 1) * half)
    x, y = torch.from_numpy(ids[mine]), torch.from_numpy(targets[mine])
    steps = 0

    def step() -> float:
        nonlocal steps
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
        value = loss.detach()
        if steps <= COMPARED:  # pcp's is of the whole batch; not in measured steps
            dist.all_reduce(value)
            value /= PROCESSES
        return value.item()

    return step


def prepare(folder: Path, size: Size, report: Callable[[str], None]) -> None:
    """Weights, a batch and pcp's bundle of both members' programs."""
    module = exported(folder, size)
    how = {"targets": ("cpu:host",), "mesh": f"dp={PROCESSES}"}
    compiled(module, size, report, **how).write(folder / "mesh.pcp")


TWO: dict[str, Callable[[Path, Size], Step]] = {
    "pcp-dp": lambda folder, size: as_rank_0(pcp_mesh, folder, size),
    "torch-ddp": lambda folder, size: as_rank_0(torch_ddp, folder, size),
}
