"""A communicator over somebody else's engine: what all of them share.

    comm = Communicator.connect("gloo://host:29500", rank=0, world_size=4)

An `Engine` takes the calls of `pcp.runtime.Communicator` and makes them of the
few things an engine must know (`_reduce` to `_barrier`). Its guarantees are the
engine's: calls are matched by their order alone, members that disagree are not
told, and after a failure neither arrays nor the engine can be used any more.
What an engine cannot do raises UsageError.
"""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pcp.engines.member import Member
from pcp.errors import UsageError
from pcp.runtime.collectives.operation import Pending
from pcp.runtime.collectives.reduction import Reduction, bounds
from pcp.runtime.collectives.validation import (
    check_peer,
    check_root,
    ranges_of,
    routes_of,
)
from pcp.runtime.communicator import backend_registry
from pcp.runtime.communicator.array_interop import foreign
from pcp.runtime.communicator.communicator import Communicator, Seconds
from pcp.runtime.memory.buffer_pool import checked, octets

Sizes = Sequence[int]


class Engine(Member):
    """One member of a fixed world; engines are subclasses."""

    # What an engine is. All in its thread; `patience` is in seconds.

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
        """Bytes to a member."""
        raise NotImplementedError

    def _recv(self, view: NDArray, src: int, tag: int, patience: float) -> None:
        """Bytes from a member."""
        raise NotImplementedError

    def _barrier(self, patience: float) -> None:
        """Until all members are here."""
        raise NotImplementedError

    def _reduces(self, dtype: np.dtype) -> bool:
        """Whether `_reduce` takes arrays of this type."""
        raise NotImplementedError

    # Collectives, as in `Communicator`.

    def all_reduce(self, array: NDArray, op: str = "sum", **options: Any) -> NDArray:
        """`array` becomes the reduction of all members' arrays; returns it.

        Bits and order of the reduction are the engine's affair.
        """
        return self.all_reduce_async(array, op, **options).result()

    @foreign(writes=True)
    def all_reduce_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        algorithm: None = None,
        compression: None = None,
        feedback: None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `all_reduce`, at once."""
        own = {"algorithm": algorithm, "compression": compression, "feedback": feedback}
        backend_registry.only_own(self.name, own)
        array = checked(array, "all_reduce", writable=True)
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

        return self._do(run, timeout)

    def all_reduced(self, array: NDArray, op: str = "sum", **options: Any) -> NDArray:
        """The reduction of all members' arrays, a new array; `array` stays as it is."""
        return self.all_reduced_async(array, op, **options).result()

    @foreign()
    def all_reduced_async(
        self, array: NDArray, op: str = "sum", *, donate: bool = False, **options: Any
    ) -> Pending:
        """As `all_reduced`, at once; with `donate`, in the array's own place."""
        array = checked(array, "all_reduced")
        taken = array if donate and array.flags.writeable else array.copy()
        return self.all_reduce_async(taken, op, **options)

    def reduce_scatter(
        self, array: NDArray, op: str = "sum", **options: Any
    ) -> NDArray:
        """This member's part of the reduction, reduced here in the order of ranks."""
        return self.reduce_scatter_async(array, op, **options).result()

    @foreign()
    def reduce_scatter_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        compression: None = None,
        feedback: None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `reduce_scatter`, at once."""
        own = {"compression": compression, "feedback": feedback}
        backend_registry.only_own(self.name, own)
        array = checked(array, "reduce_scatter")
        reduction = Reduction.of(op, array.dtype)
        rows = self._rows(array, sizes)
        row, source = _row_bytes(array), array.copy()

        def run(patience: float) -> NDArray:
            own = (self.world_size, rows[self.rank], *array.shape[1:])
            parts = np.empty(own, array.dtype)
            sent = [count * row for count in rows]
            mine = [sent[self.rank]] * self.world_size
            self._swap(_bytes(source), sent, _bytes(parts), mine, patience)
            return reduction.sequential(list(parts))

        return self._do(run, timeout)

    def all_gather(self, array: NDArray, **options: Any) -> NDArray:
        """All members' arrays, joined along the first dimension in rank order."""
        return self.all_gather_async(array, **options).result()

    @foreign()
    def all_gather_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_gather`, at once."""
        array = checked(array, "all_gather")
        source = np.atleast_1d(array).copy()

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

        return self._do(run, timeout)

    def gather(self, array: NDArray, root: int = 0, **options: Any) -> NDArray | None:
        """At the root all members' rows in rank order; None at the others."""
        return self.gather_async(array, root, **options).result()

    @foreign()
    def gather_async(
        self, array: NDArray, root: int = 0, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `gather`, at once."""
        array = checked(array, "gather")
        check_root(self.world_size, root, "gather at")
        source = np.atleast_1d(array).copy()
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

        return self._do(run, timeout)

    def all_to_all(self, array: NDArray, **options: Any) -> NDArray:
        """Part j of the first dimension goes to member j; theirs come back."""
        return self.all_to_all_async(array, **options).result()

    @foreign()
    def all_to_all_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_to_all`, at once."""
        array = checked(array, "all_to_all")
        if array.ndim == 0 or len(array) % self.world_size:
            raise UsageError(
                f"all_to_all needs a first dimension that {self.world_size} divides"
            )
        source, sizes = array.copy(), [array.nbytes // self.world_size]
        sizes *= self.world_size

        def run(patience: float) -> NDArray:
            out = np.empty_like(source)
            self._swap(_bytes(source), sizes, _bytes(out), sizes, patience)
            return out

        return self._do(run, timeout)

    def permute(
        self, array: NDArray, pairs: Sequence[tuple[int, int]], **options: Any
    ) -> NDArray:
        """The array of whoever sends here by `pairs` of (source, target), or zeros."""
        return self.permute_async(array, pairs, **options).result()

    @foreign()
    def permute_async(
        self,
        array: NDArray,
        pairs: Sequence[tuple[int, int]],
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `permute`, at once."""
        array = checked(array, "permute")
        routes = routes_of(pairs, self.world_size)
        source, size = array.copy(), array.nbytes
        ranks = range(self.world_size)
        sent = [size if (self.rank, r) in routes else 0 for r in ranks]
        theirs = [size if (r, self.rank) in routes else 0 for r in ranks]

        def run(patience: float) -> NDArray:
            out = np.zeros_like(source)
            view = _bytes(source)[: sum(sent)]
            self._swap(view, sent, _bytes(out)[: sum(theirs)], theirs, patience)
            return out

        return self._do(run, timeout)

    def broadcast(self, array: NDArray, root: int = 0, **options: Any) -> NDArray:
        """`array` becomes the root's, on all members; returns it."""
        return self.broadcast_async(array, root, **options).result()

    @foreign(writes=True)
    def broadcast_async(
        self, array: NDArray, root: int = 0, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `broadcast`, at once."""
        array = checked(array, "broadcast", writable=True)
        check_root(self.world_size, root, "broadcast from")

        def run(patience: float) -> NDArray:
            if array.nbytes:
                self._broadcast(_bytes(array), root, patience)
            return array

        return self._do(run, timeout)

    def send(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> None:
        """Send to the member whose `recv` has the same tag."""
        self.send_async(array, dst, tag, timeout=timeout).result()

    @foreign()
    def send_async(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `send`, at once."""
        array = checked(array, "send")
        check_peer(self.rank, self.world_size, dst, "send to")
        source = array.copy()
        return self._do(lambda p: self._send(_bytes(source), dst, tag, p), timeout)

    def recv(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> NDArray:
        """`out` becomes what member `src` sends under the tag; returns it."""
        return self.recv_async(out, src, tag, timeout=timeout).result()

    @foreign(writes=True)
    def recv_async(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `recv`, at once."""
        out = checked(out, "recv", writable=True)
        check_peer(self.rank, self.world_size, src, "receive from")

        def run(patience: float) -> NDArray:
            self._recv(_bytes(out), src, tag, patience)
            return out

        return self._do(run, timeout)

    def barrier(
        self, *, pairs: bool = True, tag: str = "", timeout: Seconds = None
    ) -> None:
        """Wait until all members are here; calls before it are finished, `pairs` too.

        The engine carries them out in turn, whatever `pairs` says.
        """
        self.barrier_async(pairs=pairs, tag=tag, timeout=timeout).result()

    def barrier_async(
        self, *, pairs: bool = True, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `barrier`, at once."""
        return self._do(self._barrier, timeout)

    def __getattr__(self, name: str) -> NoReturn:
        """What pcp's own can and an engine cannot is said."""
        if not name.startswith("_") and hasattr(Communicator, name):
            raise UsageError(
                f"{self.name} has no {name}; pcp's own communicator does: write the "
                f"address without {self.name}://"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # Inside.

    def _counts(self, count: int, patience: float) -> list[int]:
        """How many rows each member brings."""
        every = np.empty((self.world_size, 8), np.uint8)
        self._gather(np.array([count], np.int64).view(np.uint8), every, patience)
        return [int(n) for n in every.view(np.int64).reshape(-1)]

    def _rows(self, array: NDArray, sizes: Sequence[int] | None) -> list[int]:
        if array.ndim == 0:
            raise UsageError("reduce_scatter needs a first dimension to split")
        rows = bounds(len(array), self.world_size)
        if sizes is not None:
            rows = ranges_of(sizes, len(array), self.world_size)
        return [b - a for a, b in rows]


def _bytes(array: NDArray) -> NDArray:
    """The memory of a contiguous array, as bytes."""
    return np.frombuffer(octets(array), np.uint8)


def _row_bytes(array: NDArray) -> int:
    """The size of one row, also of an array that has none."""
    return math.prod(array.shape[1:]) * array.itemsize
