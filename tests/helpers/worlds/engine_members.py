"""What a communicator does over any engine, run by each member; its oracle is numpy.

As a program it is one member:
`mpirun -n 2 python -m helpers.worlds.engine_members mpi://`.
"""

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pcp.errors import UsageError
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.communicator.communicator import Communicator

TYPES = [
    *("int8 uint8 int32 int64 float32 float64".split()),
    *("int16 uint16 uint32 uint64 complex64 complex128".split()),
    "float16",
    ml_dtypes.bfloat16,
]
OPS = ("sum", "mean", "max", "min", "prod")


def parts(size: int, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    """Every member's array, the same for all who ask."""
    made = [np.random.default_rng(rank).integers(1, 4, shape) for rank in range(size)]
    return [array.astype(dtype) for array in made]


def exists(op: str, dtype: np.dtype) -> bool:
    """Whether pcp has this reduction."""
    try:
        Reduction.of(op, dtype)
    except UsageError:
        return False
    return True


def reductions(comm: Any) -> int:
    """all_reduce of every type and op; how many the engine has."""
    done = 0
    for dtype in map(np.dtype, TYPES):
        for op in (op for op in OPS if exists(op, dtype)):
            for shape in ((), (5,), (3, 7001), (0, 2)):
                arrays = parts(comm.world_size, shape, dtype)
                mine = arrays[comm.rank].copy()
                try:
                    given = comm.all_reduce(mine, op)
                except UsageError as error:
                    if "does not reduce" not in str(error):
                        raise
                    break
                assert given is mine
                want = Reduction.of(op, dtype).sequential(arrays)
                assert mine.dtype == dtype
                close = np.allclose(mine.astype("c16"), want.astype("c16"), rtol=1e-2)
                assert close, (op, dtype, shape)
                done += 1
    return done


def scatters(comm: Any) -> None:
    size, rank = comm.world_size, comm.rank
    for dtype in ("float32", "int16", ml_dtypes.bfloat16):
        arrays = parts(size, (3 * size + 1, 5), dtype)
        whole = Reduction.of("sum", np.dtype(dtype)).sequential(arrays)
        mine = comm.reduce_scatter(arrays[rank])
        starts = [(r * 3 + min(r, 1)) for r in range(size + 1)]
        assert np.array_equal(mine, whole[starts[rank] : starts[rank + 1]])
        sizes = [3 * size + 1, *[0] * (size - 1)]
        mine = comm.reduce_scatter(arrays[rank], sizes=sizes)
        assert mine.shape == (sizes[rank], 5)
        assert np.array_equal(mine, whole[: sizes[rank]])


def gathers(comm: Any) -> None:
    size, rank = comm.world_size, comm.rank
    for dtype in ("float64", "bool", "complex64"):
        rows = [parts(size, (r + 1, 4), dtype)[r] for r in range(size)]
        assert np.array_equal(comm.all_gather(rows[rank]), np.concatenate(rows))
        at_root = comm.gather(rows[rank], root=size - 1)
        if rank == size - 1:
            assert np.array_equal(at_root, np.concatenate(rows))
        else:
            assert at_root is None
    # Who has no rows has them of the same size.
    rows = [np.full((rank, 3), rank, np.int32) for rank in range(size)]
    assert np.array_equal(comm.all_gather(rows[rank]), np.concatenate(rows))
    at_root = comm.gather(rows[rank])
    if rank == 0:
        assert np.array_equal(at_root, np.concatenate(rows))
    every = comm.all_gather(np.array(rank, np.float32))
    assert every.tolist() == list(range(size))
    none = comm.all_gather(np.zeros((0, 3), np.float32))
    assert none.shape == (0, 3)


def moves(comm: Any) -> None:
    size, rank = comm.world_size, comm.rank
    arrays = parts(size, (2 * size, 9), "uint16")
    mine = comm.all_to_all(arrays[rank])
    want = np.concatenate([a[2 * rank : 2 * rank + 2] for a in arrays])
    assert np.array_equal(mine, want)
    big = np.full(300_000, float(rank))
    assert comm.broadcast(big, root=size - 1) is big
    assert (big == size - 1).all()
    want = arrays[rank - 1] if rank else np.zeros_like(arrays[0])
    for pair in (tuple, list):  # a list is what a manifest has
        pairs = [pair((r, r + 1)) for r in range(size - 1)]
        assert np.array_equal(comm.permute(arrays[rank], pairs), want)


def messages(comm: Any) -> None:
    if comm.rank == 0:
        comm.send(np.arange(100_000), 1, tag=7)
        comm.send(np.arange(5.0), 1)
    elif comm.rank == 1:
        assert comm.recv(np.empty(100_000, int), 0, tag=7)[-1] == 99_999
        assert comm.recv(np.empty(5), 0).tolist() == [0, 1, 2, 3, 4]
    comm.barrier()


def several_at_once(comm: Any) -> None:
    arrays = [np.full(50_000, i + comm.rank, np.float32) for i in range(6)]
    pending = [comm.all_reduce_async(array) for array in arrays]
    comm.barrier_async().result(60)
    base = comm.world_size * (comm.world_size - 1) / 2
    for i, one in enumerate(pending):
        assert (one.result(60) == i * comm.world_size + base).all()


def misuse(comm: Any) -> None:
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for wrong in (
        lambda: comm.all_reduce(np.ones(3), "median"),
        lambda: comm.all_reduce(np.ones(3, int), "mean"),
        lambda: comm.all_reduce(read_only),
        lambda: comm.all_reduce(np.ones((4, 4)).T[1:]),
        lambda: comm.broadcast(np.ones(3), root=comm.world_size),
        lambda: comm.send(np.ones(3), comm.rank),
        lambda: comm.all_to_all(np.ones(comm.world_size + 1)),
        lambda: comm.permute(np.ones(3), [(0, 0), (1, 0)]),
        lambda: comm.reduce_scatter(np.ones(3), sizes=[1]),
    ):
        try:
            wrong()
        except UsageError:
            continue
        raise AssertionError("misuse that is not said")


CASES: list[Callable[[Any], Any]] = [
    scatters,
    gathers,
    moves,
    messages,
    several_at_once,
    misuse,
]


def check(comm: Any) -> int:
    """Everything; how many reductions there were."""
    for case in CASES:
        case(comm)
    return reductions(comm)


def main() -> None:
    """One member that MPI started."""
    from mpi4py import MPI  # pyright: ignore[reportMissingImports]

    world = MPI.COMM_WORLD
    with Communicator.connect(
        sys.argv[1], rank=world.rank, world_size=world.size, timeout=60
    ) as comm:
        print("reductions", check(comm), flush=True)
        assert type(comm).__name__ == "MpiEngine"


if __name__ == "__main__":
    main()
