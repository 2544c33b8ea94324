"""Hybrid sharded data parallel with torchft on pcp: a replica dies, and comes back.

python examples/torchft/hsdp.py

Two replicas of two ranks each. Inside of a replica FSDP shards the model over "pcp";
between replicas torchft's manager averages gradients over `ProcessGroupPcp`. The second
replica is killed at its sixth step; the first goes on alone, and gives the replica that
is started again its state. Needs torch and torchft (`pip install torchft`).
"""

import os
import sys
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.multiprocessing.spawn import ProcessContext, spawn
    from torchft import Manager, Optimizer
    from torchft.coordination import LighthouseServer
except ModuleNotFoundError as error:
    raise SystemExit("this example needs torch and torchft") from error

from pcp.engines.torchft_group import ProcessGroupPcp

RANKS, STEPS, DIES_AT, DIED = 2, 40, 6, 3
SOON = timedelta(seconds=20)


class Replica:
    """One rank's part of a replica: its shards, and how they are given and taken."""

    def __init__(self, number: int) -> None:
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        fully_shard(self.model, mesh=mesh)
        inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.manager = Manager(
            pg=ProcessGroupPcp(SOON),
            min_replica_size=1,
            load_state_dict=self.take,
            state_dict=self.give,
            replica_id=f"replica{number}",
            timeout=SOON,
            quorum_timeout=SOON,
            connect_timeout=SOON,
            heartbeat_interval=timedelta(milliseconds=100),
            use_async_quorum=False,
            init_sync=False,
            hostname="127.0.0.1",
        )
        self.optimizer = Optimizer(self.manager, inner)
        assert isinstance(self.model, FSDPModule)
        # Behind the sum inside of the replica comes that over the replicas.
        self.model.set_all_reduce_hook(
            lambda gradient: self.manager.allreduce(gradient).wait()
        )

    def give(self) -> dict[str, torch.Tensor]:
        """The own shards, for the same rank of a replica that starts."""
        return {n: p.to_local().detach() for n, p in self.model.named_parameters()}

    def take(self, state: Any) -> None:
        """Go on with the shards of another replica."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.to_local().copy_(state[name])

    def step(self, data: torch.Generator) -> float:
        """The loss of a step that all replicas make, or that none of them keeps."""
        self.optimizer.zero_grad()  # begins the quorum of the step
        x = torch.randn(16, 8, generator=data)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()  # if all of them have what they need for it
        return float(loss)


def rank_of(rank: int, number: int, port: int, dies: bool) -> None:
    """One process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # `start` has it
    torch.set_num_threads(1)
    dist.init_process_group("pcp")
    replica = Replica(number)
    manager, data = replica.manager, torch.Generator().manual_seed(10 * number + rank)
    losses, seen, took = [], set(), 0
    while manager.current_step() < STEPS:
        losses.append(replica.step(data))
        took += 1
        seen.add(manager.num_participants())
        if dies and took == DIES_AT:
            os._exit(DIED)
        if manager.num_participants() == 1:
            time.sleep(0.5)  # so that the other may be back before it is all done
    digest = sum(float(shard.double().sum()) for shard in replica.give().values())
    if rank == 0:
        first = f"loss {losses[0]:.2f} -> {losses[-1]:.3f}, " if not number else ""
        print(
            f"replica {number}: {first}{manager.current_step()} steps, "
            f"{' and '.join(map(str, sorted(seen)))} at a time, sum {digest:.6f}"
        )
    sys.stdout.flush()
    os._exit(0)  # torchft's servers need no goodbye


def start(number: int, *, dies: bool = False) -> tuple[ProcessContext, dist.TCPStore]:
    """The processes of a replica, and the store at which they meet."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    given = number, store.port, dies
    context = spawn(rank_of, given, nprocs=RANKS, join=False)
    assert context is not None
    return context, store


def main() -> None:
    """Two replicas, and the second once more."""
    lighthouse = LighthouseServer(
        "127.0.0.1:0", 1, join_timeout_ms=200, heartbeat_timeout_ms=1000
    )
    port = urlsplit(lighthouse.address()).port
    os.environ["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    first, held = start(0)
    second, also = start(1, dies=True)
    for process in second.processes:
        process.join()
        assert process.exitcode == DIED, f"it ended with {process.exitcode}"
    print("replica 1 was killed")
    again, too = start(1)
    for context in (first, again):
        while not context.join():
            pass
    del held, also, too
    lighthouse.shutdown()


if __name__ == "__main__":
    main()
