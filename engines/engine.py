"""Engines: communicators over other libraries.

    comm = Communicator.connect("gloo://host:29500", rank=0, world_size=4)

An `Engine` takes the calls of `pcp.runtime.Communicator` and makes them of the
few primitives of a library (`_reduce` to `_barrier`). Its guarantees are the
library's: calls are matched by their order alone, disagreement of members is not
found, and after a failure neither arrays nor the engine can be used any more.
A call that the library lacks raises UsageError.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pcp.engines.member import Member
from pcp.errors import UsageError
from pcp.runtime.collectives.call import Call
from pcp.runtime.collectives.gather_calls import AllGather, Gather
from pcp.runtime.collectives.move_calls import (
    AllToAll,
    BarrierCall,
    Broadcast,
    Permute,
    Recv,
    Send,
)
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.reduce_calls import AllReduce, AllReduced, ReduceScatter
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.collectives.validation import check_peer, check_root, routes_of
from pcp.runtime.communicator import backend_registry
from pcp.runtime.communicator.collective_methods import Collectives
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.memory.buffer_pool import checked, octets

Sizes = Sequence[int]
Work = Callable[[float], Any]
"""A task of an engine's thread; its argument is the time limit in seconds."""
_TAKEN = {"tag", "timeout", "sizes", "pairs", "donate"}
"""Options that every engine has; calls are matched by order, whatever the tag."""


class Engine(Member, Collectives):
    """One member of a fixed world; engines are subclasses."""

    # The primitives of an engine. All in its thread; `patience` is in seconds.

    def _reduce(self, flat: NDArray, op: str, patience: float) -> None:
        """`flat` becomes all members' sum, max, min or prod."""
        raise NotImplementedError

    def _broadcast(self, view: NDArray, root: int, patience: float) -> None:
        """`view`, of bytes, becomes the root's."""
        raise NotImplementedError

    def _gather(self, view: NDArray, out: NDArray, patience: float) -> None:
        """`out[r]` becomes the `view`, of bytes, of rank r; all are as long."""
        raise NotImplementedError

    def _swap(
        self, view: NDArray, sizes: Sizes, out: NDArray, theirs: Sizes, patience: float
    ) -> None:
        """`sizes[r]` consecutive bytes of `view` go to rank r; into `out` likewise."""
        raise NotImplementedError

    def _send(self, view: NDArray, dst: int, tag: int, patience: float) -> None:
        """Send bytes to a member."""
        raise NotImplementedError

    def _recv(self, view: NDArray, src: int, tag: int, patience: float) -> None:
        """Receive bytes from a member."""
        raise NotImplementedError

    def _barrier(self, patience: float) -> None:
        """Wait until all members have reached the barrier."""
        raise NotImplementedError

    def _reduces(self, dtype: np.dtype) -> bool:
        """Whether `_reduce` takes arrays of this type."""
        raise NotImplementedError

    # Collectives, as in `Communicator`. Operands that are read later are copied.

    def _start(self, call: Call[Any]) -> Pending:
        own = dict(call.options())
        backend_registry.only_own(self.name, {k: own[k] for k in own.keys() - _TAKEN})
        return self._do(self._work(call), call.timeout)

    def _work(self, call: Call[Any]) -> Work:
        """The task for the engine's thread; UsageError for a call that it lacks."""
        match call:
            case AllReduced():
                array = checked(call.array, call.name)
                donated = call.donate and array.flags.writeable
                return self._all_reduce(array if donated else array.copy(), call.op)
            case AllReduce():
                array = checked(call.array, call.name, writable=True)
                return self._all_reduce(array, call.op)
            case ReduceScatter():
                return self._reduce_scatter(checked(call.array, call.name), call)
            case AllGather():
                array = checked(call.array, call.name)
                return self._all_gather(np.atleast_1d(array).copy())
            case Gather():
                array = checked(call.array, call.name)
                check_root(self.world_size, call.root, "gather at")
                return self._gather_at(np.atleast_1d(array).copy(), call.root)
            case AllToAll():
                return self._all_to_all(checked(call.array, call.name).copy())
            case Permute():
                array = checked(call.array, call.name)
                routes = routes_of(call.pairs, self.world_size)
                return self._permute(array.copy(), routes)
            case Broadcast():
                array = checked(call.array, call.name, writable=True)
                check_root(self.world_size, call.root, "broadcast from")
                return self._broadcast_from(array, call.root)
            case Send():
                source = checked(call.array, call.name).copy()
                check_peer(self.rank, self.world_size, call.dst, "send to")
                return lambda p: self._send(_bytes(source), call.dst, call.tag, p)
            case Recv():
                out = checked(call.out, call.name, writable=True)
                check_peer(self.rank, self.world_size, call.src, "receive from")
                return self._receive(out, call.src, call.tag)
            case BarrierCall():  # calls before it are finished, whatever `pairs` says
                return self._barrier
            case _:
                raise self._lacks(call.name)

    def _all_reduce(self, array: NDArray, op: str) -> Work:
        """An all_reduce; bits and order of the reduction are the library's."""
        Reduction.of(op, array.dtype)
        if not self._reduces(array.dtype):
            raise UsageError(
                f"{self.name} does not reduce {array.dtype.name}; pcp's own does: "
                f"write the address without {self.name}://"
            )

        def run(patience: float) -> NDArray:
            flat = array.reshape(-1)
            if flat.size:
                self._reduce(flat, "sum" if op == "mean" else op, patience)
            if op == "mean":
                np.divide(array, self.world_size, out=array, casting="unsafe")
            return array

        return run

    def _reduce_scatter(self, array: NDArray, call: ReduceScatter) -> Work:
        """The own part, reduced here in the order of ranks."""
        reduction = Reduction.of(call.op, array.dtype)
        rows = [b - a for a, b in call.rows(self.world_size)]
        row, source = _row_bytes(array), array.copy()

        def run(patience: float) -> NDArray:
            own = (self.world_size, rows[self.rank], *array.shape[1:])
            parts = np.empty(own, array.dtype)
            sent = [count * row for count in rows]
            mine = [sent[self.rank]] * self.world_size
            self._swap(_bytes(source), sent, _bytes(parts), mine, patience)
            return reduction.sequential(list(parts))

        return run

    def _all_gather(self, source: NDArray) -> Work:
        def run(patience: float) -> NDArray:
            counts = self._counts(len(source), patience)
            row = _row_bytes(source)
            longest = max(counts) * row
            padded = np.zeros(longest, np.uint8)
            padded[: source.nbytes] = _bytes(source)
            every = np.empty((self.world_size, longest), np.uint8)
            if longest:
                self._gather(padded, every, patience)
            parts = [every[r, : counts[r] * row] for r in range(self.world_size)]
            joined = np.concatenate(parts).view(source.dtype)
            return joined.reshape(sum(counts), *source.shape[1:])

        return run

    def _gather_at(self, source: NDArray, root: int) -> Work:
        here = self.rank == root

        def run(patience: float) -> NDArray | None:
            counts = self._counts(len(source), patience)
            row = _row_bytes(source)
            shape = (sum(counts) if here else 0, *source.shape[1:])
            out = np.empty(shape, source.dtype)
            sent = [source.nbytes if r == root else 0 for r in range(self.world_size)]
            theirs = [count * row if here else 0 for count in counts]
            self._swap(_bytes(source), sent, _bytes(out), theirs, patience)
            return out if here else None

        return run

    def _all_to_all(self, source: NDArray) -> Work:
        if source.ndim == 0 or len(source) % self.world_size:
            raise UsageError(
                f"all_to_all needs a first dimension that {self.world_size} divides"
            )
        sizes = [source.nbytes // self.world_size] * self.world_size

        def run(patience: float) -> NDArray:
            out = np.empty_like(source)
            self._swap(_bytes(source), sizes, _bytes(out), sizes, patience)
            return out

        return run

    def _permute(self, source: NDArray, routes: list[tuple[int, int]]) -> Work:
        size, ranks = source.nbytes, range(self.world_size)
        sent = [size if (self.rank, r) in routes else 0 for r in ranks]
        theirs = [size if (r, self.rank) in routes else 0 for r in ranks]

        def run(patience: float) -> NDArray:
            out = np.zeros_like(source)
            view = _bytes(source)[: sum(sent)]
            self._swap(view, sent, _bytes(out)[: sum(theirs)], theirs, patience)
            return out

        return run

    def _broadcast_from(self, array: NDArray, root: int) -> Work:
        def run(patience: float) -> NDArray:
            if array.nbytes:
                self._broadcast(_bytes(array), root, patience)
            return array

        return run

    def _receive(self, out: NDArray, src: int, tag: int) -> Work:
        def run(patience: float) -> NDArray:
            self._recv(_bytes(out), src, tag, patience)
            return out

        return run

    def __getattr__(self, name: str) -> NoReturn:
        """UsageError for methods of pcp's communicator that an engine lacks."""
        if not name.startswith("_") and hasattr(Communicator, name):
            raise self._lacks(name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # Inside.

    def _lacks(self, name: str) -> UsageError:
        return UsageError(
            f"{self.name} has no {name}; pcp's own communicator does: write the "
            f"address without {self.name}://"
        )

    def _counts(self, count: int, patience: float) -> list[int]:
        """How many rows each member brings."""
        every = np.empty((self.world_size, 8), np.uint8)
        self._gather(np.array([count], np.int64).view(np.uint8), every, patience)
        return [int(n) for n in every.view(np.int64).reshape(-1)]


class _Lacking:
    """A method of communicators that an engine lacks: access raises UsageError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, engine: Engine | None, owner: type) -> Any:
        if engine is None:
            return self
        raise engine._lacks(self._name)


for _name in ("reduce", "scatter", "exchange"):
    setattr(Engine, _name, _Lacking(_name))
    setattr(Engine, f"{_name}_async", _Lacking(f"{_name}_async"))


def _bytes(array: NDArray) -> NDArray:
    """The memory of a contiguous array, as bytes."""
    return np.frombuffer(octets(array), np.uint8)


def _row_bytes(array: NDArray) -> int:
    """The size of one row, also of an array that has none."""
    return math.prod(array.shape[1:]) * array.itemsize
