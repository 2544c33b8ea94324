"""A step of PyTorch's DistributedDataParallel on pcp, beside Gloo on the same script.

    python benchmarks/ddp.py [--width 512] [--rounds 40] [--busy]

Two processes over TCP, each on one thread, train two copies of one perceptron in turns,
one over pcp and one over Gloo; their losses are compared. Prints medians in
milliseconds, rank 0's. `--busy` adds a Python thread to each that never rests.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from pcp.engines.torch_backend import PcpProcessGroup
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous

WORLD, WARM = 2, 5


def copy_of(group: dist.ProcessGroup, width: int) -> tuple[nn.Module, torch.optim.SGD]:
    """A model that is the same on all, and its optimizer."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step(model: nn.Module, optimizer: torch.optim.SGD, x: torch.Tensor) -> float:
    """The loss of one step."""
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def work_on() -> None:
    """Hold the interpreter's lock as often as it is given."""
    count = 0
    while True:
        count += 1


def member(rank: int, place: str, options: argparse.Namespace) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = f"file://{place}/gloo"
    dist.init_process_group("gloo", meeting, world_size=WORLD, rank=rank)
    theirs = dist.group.WORLD
    assert theirs is not None
    hosted = Rendezvous.listen("127.0.0.1:0") if rank == 0 else None
    told = [hosted.address if hosted is not None else ""]
    dist.broadcast_object_list(told)
    comm = Communicator.connect(
        hosted or told[0], rank=rank, world_size=WORLD, shared_memory=False
    )
    copies = {
        "pcp": copy_of(PcpProcessGroup(comm), options.width),
        "gloo": copy_of(theirs, options.width),
    }
    if options.busy:
        threading.Thread(target=work_on, daemon=True).start()
    data = torch.Generator().manual_seed(rank)
    times = {name: list[float]() for name in copies}
    for _ in range(options.rounds + WARM):
        x, losses = torch.randn(32, options.width, generator=data), []
        for name, (model, optimizer) in copies.items():
            dist.barrier()
            start = time.perf_counter()
            losses.append(step(model, optimizer, x))
            times[name].append(1e3 * (time.perf_counter() - start))
        assert abs(losses[0] - losses[1]) < 1e-5, losses
    if rank == 0:
        ours, gloo = (statistics.median(t[WARM:]) for t in times.values())
        print(f"a step: pcp {ours:.2f}, Gloo {gloo:.2f} ms: {ours / gloo:.2f}")
        print(f"at best: pcp {min(times['pcp']):.2f}, Gloo {min(times['gloo']):.2f} ms")
    os._exit(0)  # the thread that never rests does not, either


def main() -> None:
    """Start both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        spawn(member, (place, options), nprocs=WORLD)


if __name__ == "__main__":
    main()
