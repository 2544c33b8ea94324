"""One rank of a torch world on pcp, and what scripts for Gloo do beside collectives.

Run as `torch_ranks`, with FOLDER for checkpoints; prints "ok <name>" likewise.
"""

import faulthandler
import os
from concurrent.futures import Future
from datetime import timedelta

import torch
import torch.distributed as dist
from helpers.present import present
from helpers.worlds.torch_ranks import compare, draw
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import Shard, distribute_tensor

import pcp.engines.torch_backend
from pcp.errors import Timeout

CPU = torch.device("cpu")


def fsdp(group, rank: int) -> list[torch.Tensor]:
    """The losses of a model whose parameters are resized, which is FSDP1's way."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    model = FullyShardedDataParallel(inner, process_group=group, device_id=CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data, losses = torch.Generator().manual_seed(100 + rank), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *model.state_dict().values()]


def resized() -> None:
    """What was communicated can be resized, in every type."""
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool):
        tensor = torch.ones(8, dtype=dtype)
        dist.broadcast(tensor, 0)
        dist.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor)
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0
    print("ok resized", flush=True)


def groups(rank: int) -> None:
    """Groups come and go, before the world does."""

    def summed(group) -> None:
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [3.0] * 3

    for local in (False, True, True):
        made = dist.new_group([0, 1], use_local_synchronization=local)
        assert isinstance(made, dist.ProcessGroup)
        summed(made)
        assert dist.get_process_group_ranks(made) == [0, 1]
        dist.destroy_process_group(made)
    halves = dist.split_group(split_ranks=[[0], [1]])
    assert halves is not None
    assert halves.size() == 1
    whole = dist.split_group(split_ranks=[[1, 0]], group_desc="both")
    summed(whole)
    assert present(whole).group_desc == "both"
    inside = dist.split_group(whole, [[0, 1]])
    summed(inside)
    assert (dist.split_group(split_ranks=[[1]]) is None) == (rank == 0)
    dist.destroy_process_group(whole)
    summed(inside)  # it does not need what it was split from
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    summed(mesh["dp"].get_group())
    print("ok groups", flush=True)


def checkpoint(rank: int) -> None:
    """`async_save`, which asks a group for its devices, and what it saved."""
    mesh = init_device_mesh("cpu", (2,))

    def state(value: float) -> dict:
        whole = torch.arange(16.0).reshape(8, 2) * value
        cut = distribute_tensor(whole, mesh, [Shard(0)])
        return {"cut": cut, "same": torch.full((3,), value)}

    saving = async_save(state(2.0), checkpoint_id=os.environ["FOLDER"])
    assert isinstance(saving, Future)
    saving.result()
    found = state(0.0)
    load(found, checkpoint_id=os.environ["FOLDER"])
    assert torch.equal(found["cut"].full_tensor(), state(2.0)["cut"].full_tensor())
    assert torch.equal(found["same"], state(2.0)["same"])
    print("ok checkpoint", flush=True)


def order(rank: int) -> None:
    """Works that nobody waited for, and pairs around a barrier."""
    tensor = torch.full((50_000,), rank + 1.0)
    work = present(dist.all_reduce(tensor, async_op=True))
    dist.barrier()
    assert work.is_completed()
    assert (tensor == 3).all()
    if rank == 0:  # a receive may be met behind a barrier, as with Gloo
        found = torch.zeros(3)
        request = present(dist.irecv(found, 1))
        try:
            request.wait(timedelta(milliseconds=50))
        except Timeout:
            assert not request.is_completed()
        else:
            raise AssertionError("received what was not sent")
        dist.barrier()
        request.wait()
        assert found.tolist() == [1, 1, 1]
    else:
        dist.barrier()
        dist.send(torch.ones(3), 0)
    print("ok order", flush=True)


def layouts(group, rank: int) -> list[torch.Tensor]:
    """Empty tensors, narrow floats, one that lies turned, and pairs in a batch."""
    empty = torch.zeros(0, 3)
    dist.all_reduce(empty, group=group)
    dist.broadcast(empty, 0, group=group)
    dist.all_gather([torch.zeros(0, 3) for _ in range(2)], empty, group=group)
    dist.all_gather_into_tensor(torch.zeros(0, 3), empty, group=group)
    dist.reduce_scatter_tensor(torch.zeros(0, 3), torch.zeros(0, 3), group=group)
    dist.all_to_all_single(torch.zeros(0, 3), torch.zeros(0, 3), group=group)
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        part = torch.empty(20_001, dtype=dtype)
        dist.reduce_scatter_tensor(part, draw(rank, 40_002, dtype=dtype), group=group)
        found.append(part)
    turned = draw(rank, 4, 3).t()
    dist.reduce(turned, 0, group=group)
    found += [turned.contiguous()] if rank == 0 else []
    mine, theirs = draw(rank, 5), torch.zeros(5)
    pair = [
        dist.P2POp(dist.isend, mine, 1 - rank, group),
        dist.P2POp(dist.irecv, theirs, 1 - rank, group),
    ]
    for request in dist.batch_isend_irecv(pair):
        request.wait()
    return [*found, theirs]


def apart(rank: int) -> None:
    """Results in tensors with gaps, or turned, where Gloo puts other elements."""
    with_gaps = torch.zeros(4, 6)[:, ::2]
    dist.all_gather_into_tensor(with_gaps, draw(rank, 2, 3))
    assert torch.equal(with_gaps, torch.cat([draw(r, 2, 3) for r in range(2)]))
    turned = torch.zeros(3, 4).t()
    parts = [draw(9 + i, 4, 3) for i in range(2)]
    dist.scatter(turned, parts if rank == 0 else None, 0)
    assert torch.equal(turned, parts[rank])
    rows = torch.zeros(2, 6)[:, ::2]
    dist.all_to_all_single(rows, draw(rank, 2, 3))
    assert torch.equal(rows, torch.stack([draw(r, 2, 3)[rank] for r in range(2)]))
    if rank == 0:
        dist.send(parts[0].t(), 1)
    else:
        dist.recv(rows := torch.zeros(4, 3).t(), 0)
        assert torch.equal(rows, parts[0].t())
    print("ok apart", flush=True)


def main() -> None:
    """All of it, and an end with work under way."""
    faulthandler.dump_traceback_later(100, exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("pcp")
    rank = dist.get_rank()
    both = (dist.group.WORLD, dist.new_group(backend="gloo"))
    compare("fsdp", lambda group: fsdp(group, rank), both)
    compare("layouts", lambda group: layouts(group, rank), both)
    resized()
    apart(rank)
    groups(rank)
    order(rank)
    checkpoint(rank)
    last = torch.full((50_000,), rank + 1.0)
    dist.all_reduce(last, async_op=True)
    dist.destroy_process_group()
    assert (last == 3).all(), "the group ended before its last call did"
    dist.init_process_group("pcp")
    assert isinstance(dist.group.WORLD, pcp.engines.torch_backend.PcpProcessGroup)
    dist.all_reduce(last)
    assert (last == 6).all()
    dist.destroy_process_group()
    print("ok end", flush=True)
