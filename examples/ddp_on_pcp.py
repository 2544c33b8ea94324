"""Two ranks train with torch's DistributedDataParallel, over pcp and over Gloo.

python examples/ddp_on_pcp.py
"""

import sys
import tempfile
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.multiprocessing.spawn import spawn
    from torch.nn.parallel import DistributedDataParallel
except ModuleNotFoundError as error:
    raise SystemExit("this example needs torch: pip install -e '.[torch]'") from error

import pcp.engines.torch_backend  # noqa: F401  from here on "pcp" is a backend

WORLD = 2


def train(rank: int, backend: str) -> torch.Tensor:
    """The losses of a small regression, each rank with its own data."""
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(20):
        x = torch.randn(16, 8, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def member(rank: int, meeting: str) -> None:
    """One process; with torchrun there would be no `init_method`."""
    dist.init_process_group("pcp", f"file://{meeting}", rank=rank, world_size=WORLD)
    ours, theirs = train(rank, "pcp"), train(rank, "gloo")
    if rank == 0:
        print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f} after {len(ours)} steps over pcp")
        print(f"over Gloo it differs by at most {(ours - theirs).abs().max():.1e}")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        spawn(member, (meeting,), nprocs=WORLD)
