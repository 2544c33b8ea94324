"""MPI under pcp's calls, through mpi4py: for programs that `mpirun` starts.

    comm = Communicator.connect("mpi://", rank=rank, world_size=size)

takes MPI's world, whose ranks and size must be those given. Arrays are used
where they lie. MPI cannot cancel a call: after a deadline has passed, or a
member is lost, the program has to end.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.engines.engine import Engine, Sizes
from pcp.engines.member import translated
from pcp.errors import ConfigError, PeerLost, RuntimeFault, Timeout, UsageError

_TYPES = frozenset(
    "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64 complex64 "
    "complex128".split()
)
_LARGEST_COUNT = (1 << 31) - 1
_SPINS = 2000
"""How often a request is polled before the thread yields the processor."""


class MpiEngine(Engine):
    """A communicator over a duplicate of an MPI communicator."""

    name = "mpi"

    def __init__(self, mpi: Any, *, rank: int, world_size: int, timeout: float) -> None:
        super().__init__(rank, world_size, timeout)
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._ops = {
            "sum": mpi.SUM,
            "prod": mpi.PROD,
            "max": mpi.MAX,
            "min": mpi.MIN,
        }

    def _reduces(self, dtype: np.dtype) -> bool:
        return dtype.name in _TYPES

    def _reduce(self, flat: NDArray, op: str, patience: float) -> None:
        there = [self._mpi.IN_PLACE, flat, self._ops[op]]
        self._wait(lambda: self._comm.Iallreduce(*there), patience)

    def _broadcast(self, view: NDArray, root: int, patience: float) -> None:
        self._wait(lambda: self._comm.Ibcast(view, root), patience)

    def _gather(self, view: NDArray, out: NDArray, patience: float) -> None:
        self._wait(lambda: self._comm.Iallgather(view, out), patience)

    def _swap(
        self, view: NDArray, sizes: Sizes, out: NDArray, theirs: Sizes, patience: float
    ) -> None:
        if max(view.size, out.size) > _LARGEST_COUNT:
            raise UsageError("mpi exchanges at most 2 GiB at once; use pcp's own")
        byte = self._mpi.BYTE
        given = [view, (list(sizes), _starts(sizes)), byte]
        taken = [out, (list(theirs), _starts(theirs)), byte]
        self._wait(lambda: self._comm.Ialltoallv(given, taken), patience)

    def _send(self, view: NDArray, dst: int, tag: int, patience: float) -> None:
        self._wait(lambda: self._comm.Isend(view, dst, tag), patience)

    def _recv(self, view: NDArray, src: int, tag: int, patience: float) -> None:
        self._wait(lambda: self._comm.Irecv(view, src, tag), patience)

    def _barrier(self, patience: float) -> None:
        self._wait(self._comm.Ibarrier, patience)

    def _end(self) -> None:
        self._comm.Free()

    def _wait(self, start: Any, patience: float) -> None:
        deadline = time.monotonic() + patience
        with translated((self._mpi.Exception,), _lost):
            request = start()
            for _ in range(_SPINS):
                if request.Test():
                    return
            while not request.Test():
                if time.monotonic() > deadline:
                    raise Timeout(f"mpi: the others did not come within {patience:g} s")
                time.sleep(0)


def _starts(sizes: Sizes) -> list[int]:
    """The offset of each part."""
    return [sum(sizes[:rank]) for rank in range(len(sizes))]


def _lost(error: Exception) -> RuntimeFault:
    return PeerLost(f"mpi: {error}")


def mpi(place: str, *, rank: int, world_size: int, timeout: float) -> MpiEngine:
    """The engine of this process, in MPI's world."""
    if place not in ("", "world"):
        raise ConfigError(f"mpi://{place}: MPI's members are mpirun's; write mpi://")
    try:
        # The extra `mpi`, which needs an MPI on the machine: `dev` goes without.
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"mpi:// needs the package mpi4py and an MPI: {error}"
        ) from error
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, world_size):
        raise ConfigError(
            f"MPI says rank {world.rank} of {world.size}, not {rank} of {world_size}; "
            f"start the program with mpirun -n {world_size}"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ConfigError("this MPI was started for one thread; pcp's calls need two")
    return MpiEngine(MPI, rank=rank, world_size=world_size, timeout=timeout)
