"""One rank of a torch world on pcp, which compares itself with Gloo.

Run by `forked_ranks`, with MASTER_ADDR and MASTER_PORT. Prints "ok <name>" for
every comparison that holds; a difference ends it with a traceback.
"""

import faulthandler

import pytest
import torch
import torch.distributed as dist
from helpers.present import present
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

import pcp.engines.torch_backend
from pcp.errors import CollectiveAborted

OP = dist.ReduceOp
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.uint8, torch.int32, torch.int64]
EVERY = [*FLOATS, *INTS, torch.bool]
LARGE = 30_011


def draw(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers as a rank's values: sums are exact in every type."""
    made = torch.Generator().manual_seed(rank)
    values = torch.randint(0, 3, shape, generator=made)
    return values.to(dtype)


def compare(name: str, call, groups, exact: bool = True) -> None:
    """`call(group)` gives the same tensors under both backends."""
    ours, theirs = (call(group) for group in groups)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype, name
        a, b = (t.float() if t.dtype in FLOATS else t for t in (a, b))
        # With three ranks the two add up in another order.
        rtol, atol = (0, 0) if exact else (1e-5, 1e-7)
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    print("ok", name, flush=True)


def reductions(groups, rank: int, world: int) -> None:
    """all_reduce, reduce and reduce_scatter, all ops and types."""

    def reduced(group, op, dtype, size):
        tensor = draw(rank, size, dtype=dtype)
        dist.all_reduce(tensor, op, group=group)
        return [tensor]

    for dtype in [*FLOATS, *INTS]:
        for op in (OP.SUM, OP.PRODUCT, OP.MIN, OP.MAX):
            for size in (5, LARGE):
                name = f"all_reduce {op} {dtype} {size}"
                compare(
                    name, lambda g, o=op, d=dtype, s=size: reduced(g, o, d, s), groups
                )
    for op in (OP.BAND, OP.BOR, OP.BXOR):
        compare(
            f"all_reduce {op}", lambda g, o=op: reduced(g, o, torch.int32, 9), groups
        )
    for op in (OP.MIN, OP.MAX):
        compare(
            f"all_reduce bool {op}",
            lambda g, o=op: reduced(g, o, torch.bool, 9),
            groups,
        )

    def to_root(group, root):
        tensor = draw(rank, LARGE)
        dist.reduce(tensor, root, group=group)
        return [tensor] if rank == root else []

    for root in range(world):
        compare(f"reduce {root}", lambda g, r=root: to_root(g, r), groups)

    def split(group):
        out = torch.empty(7, 3)
        dist.reduce_scatter(out, list(draw(rank, world, 7, 3)), group=group)
        whole = torch.empty(4, 2)
        dist.reduce_scatter_tensor(whole, draw(rank, 4 * world, 2), group=group)
        return [out, whole]

    compare("reduce_scatter", split, groups)


def sparse(groups, rank: int, world: int) -> None:
    """Sums of sparse tensors, by hand and in DDP."""

    def drawn(dtype: torch.dtype, dims: int, entries: int) -> torch.Tensor:
        shape, made = (7, 9, 2), torch.Generator().manual_seed(rank)
        where = torch.stack(
            [torch.randint(0, n, (entries,), generator=made) for n in shape[:dims]]
        )
        values = draw(rank, entries, *shape[dims:], dtype=dtype)
        return torch.sparse_coo_tensor(where, values, shape, check_invariants=True)

    def summed(group, dtype, dims, entries):
        tensor = drawn(dtype, dims, entries)
        dist.all_reduce(tensor, group=group)
        return [tensor.indices(), tensor.values()]

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for dims in (1, 2, 3):
            name = f"sparse {dtype} {dims}"  # rank 1 has nothing
            entries = 0 if rank == 1 else 4 + 2 * rank
            compare(
                name, lambda g, d=dtype, n=dims, e=entries: summed(g, d, n, e), groups
            )

    def embedded(group):
        torch.manual_seed(0)
        table = nn.Embedding(11, 3, sparse=True)
        model = DistributedDataParallel(table, process_group=group)
        for step in range(3):
            model(torch.tensor([rank, 2 * rank, step])).square().sum().backward()
        gradient = present(table.weight.grad)
        return [gradient.to_dense()]

    compare("sparse ddp", embedded, groups, exact=world == 2)
    mean = drawn(torch.float64, 2, 5)
    dist.all_reduce(mean, OP.AVG, group=groups[0])
    total = drawn(torch.float64, 2, 5)
    dist.all_reduce(total, group=groups[0])
    torch.testing.assert_close(mean.to_dense(), total.to_dense() / world)
    odd = torch.zeros(3 + (rank == 1), 2).to_sparse()
    with pytest.raises(CollectiveAborted, match="sparse tensors are not alike"):
        dist.all_reduce(odd, group=groups[0])
    print("ok sparse", flush=True)


def movements(groups, rank: int, world: int) -> None:
    """What only moves, in every type and for every root."""

    def moved(group, dtype, root):
        mine = draw(rank, 6, 4, dtype=dtype)
        seen = draw(rank, 3, dtype=dtype)
        dist.broadcast(seen, root, group=group)
        every = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(every, mine, group=group)
        joined = torch.empty(6 * world, 4, dtype=dtype)
        dist.all_gather_into_tensor(joined, mine, group=group)
        at_root = [torch.empty_like(mine) for _ in range(world)]
        dist.gather(mine, at_root if rank == root else None, root, group=group)
        part = torch.empty(4, dtype=dtype)
        whole = [draw(9 + i, 4, dtype=dtype) for i in range(world)]
        dist.scatter(part, whole if rank == root else None, root, group=group)
        return [seen, *every, joined, *(at_root if rank == root else []), part]

    for dtype in EVERY:
        for root in range(world):
            name = f"movements {dtype} {root}"
            compare(name, lambda g, d=dtype, r=root: moved(g, d, r), groups)

    def exchanged(group):
        even = torch.empty(2 * world, 3)
        dist.all_to_all_single(even, draw(rank, 2 * world, 3), group=group)
        given = [rank + other for other in range(world)]
        uneven = torch.empty(sum(given), 3)
        dist.all_to_all_single(
            uneven, draw(rank, sum(given), 3), given, given, group=group
        )
        return [even, uneven]

    compare("all_to_all_single", exchanged, groups)

    def columns(group):
        seen = draw(rank, 4, 5).t()  # not contiguous
        dist.broadcast(seen, 0, group=group)
        dist.all_reduce(seen, group=group)
        return [seen.contiguous()]

    compare("not contiguous", columns, groups[:1] * 2)

    def pairs(group):
        found = torch.empty(LARGE, dtype=torch.bfloat16)
        requests = [
            dist.isend(
                draw(rank, LARGE, dtype=torch.bfloat16), (rank + 1) % world, group, 7
            ),
            dist.irecv(found, (rank - 1) % world, group, 7),
        ]
        for request in requests:
            present(request).wait()
        return [found]

    compare("send and recv", pairs, groups)


def beyond_gloo(group, rank: int, world: int) -> None:
    """What Gloo has not: means, lists of uneven parts, futures, objects."""
    tensor = torch.full((5,), float(rank))
    work = present(dist.all_reduce(tensor, OP.AVG, group=group, async_op=True))
    values = work.get_future().wait()
    assert values[0].data_ptr() == tensor.data_ptr()
    assert tensor.tolist() == [(world - 1) / 2] * 5
    assert work.is_completed()
    outputs = [torch.empty(r + 1) for r in range(world)]
    inputs = [torch.full((rank + 1,), float(r)) for r in range(world)]
    dist.all_to_all(outputs, inputs, group=group)
    assert all((out == rank).all() for out in outputs)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": r} for r in range(world)]
    eighth = torch.full((3,), 0.5).to(torch.float8_e4m3fn)
    dist.all_reduce(eighth, group=group)
    assert eighth.float().tolist() == [world / 2] * 3
    dist.barrier(group=group)
    print("ok beyond", flush=True)


def subgroups(rank: int, world: int) -> None:
    """new_group: of some ranks, and of one."""
    last = dist.new_group([world - 1, 0])
    alone = [dist.new_group([r]) for r in range(world)][rank]
    tensor = torch.tensor([10.0**rank])
    if rank in (0, world - 1):
        dist.all_reduce(tensor, group=last)
        assert tensor.item() == 1 + 10.0 ** (world - 1)
    before = tensor.clone()
    dist.all_reduce(tensor, group=alone)
    assert tensor == before
    print("ok subgroups", flush=True)


def train(group, rank: int, *, hooked: bool = False) -> list[torch.Tensor]:
    """DDP as scripts use it; the losses, then the parameters.

    `hooked`: with a hook whose callbacks wait for more collectives.
    """
    torch.manual_seed(0)
    inner = nn.Sequential(
        nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 4)
    )
    model = DistributedDataParallel(inner, process_group=group)
    if hooked:
        model.register_comm_hook(
            power_sgd.PowerSGDState(group, start_powerSGD_iter=2),
            power_sgd.powerSGD_hook,
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    for step in range(8):
        x = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        if step == 3:
            with model.no_sync():
                model(x).square().mean().backward()
        loss = (model(x) - x[:, :4]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in model.parameters())]


def sharded(group, rank: int, world: int) -> None:
    """DTensor and FSDP over the default group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(24.0).reshape(12, 2)
    cut = distribute_tensor(whole, mesh, [Shard(0)])
    assert cut.to_local().shape == (12 // world, 2)
    assert torch.equal(cut.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal(cut.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    torch.manual_seed(0)
    plain = nn.Linear(12, 6)
    torch.manual_seed(0)
    model = nn.Linear(12, 6)
    fully_shard(model, mesh=mesh)  # in place
    x = torch.randn(4, 12)
    model(x).square().sum().backward()
    plain(x).square().sum().backward()
    gradient = model.weight.grad
    assert isinstance(gradient, DTensor)
    torch.testing.assert_close(gradient.full_tensor(), plain.weight.grad)
    print("ok sharded", flush=True)


def main() -> None:
    """All of it."""
    faulthandler.dump_traceback_later(100, exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("pcp")
    assert isinstance(dist.group.WORLD, pcp.engines.torch_backend.PcpProcessGroup), (
        "the world is on pcp"
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = (dist.group.WORLD, dist.new_group(backend="gloo"))
    steps = {
        "reductions": lambda: reductions(groups, rank, world),
        "sparse": lambda: sparse(groups, rank, world),
        "movements": lambda: movements(groups, rank, world),
        "beyond": lambda: beyond_gloo(groups[0], rank, world),
        "subgroups": lambda: subgroups(rank, world),
        "ddp": lambda: compare(
            "ddp", lambda g: train(g, rank), groups, exact=world == 2
        ),
        "hooks": lambda: compare(
            "hooks", lambda g: train(g, rank, hooked=True), groups, exact=world == 2
        ),
        "sharded": lambda: sharded(groups[0], rank, world),
    }
    for step in steps.values():
        step()
    dist.destroy_process_group()
    print("ok end", flush=True)
