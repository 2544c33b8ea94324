"""The collectives a program calls: one member's handle on its group.

    comm = Communicator.connect("127.0.0.1:29500", rank=0, world_size=4)
    comm.all_reduce(array, op="mean")

All members must make the same calls. Operations are matched by their tag and
how often the tag was used, so any number may be under way at once; calls
without a tag share one and are matched in the order they were made. Every
operation has a deadline. An operation either completes on all members, or
raises on all of them and leaves their arrays as they were.
"""

import hashlib
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, ConfigError, UsageError
from pcp.runtime.buffers import BufferPool, checked, octets
from pcp.runtime.collectives import Barrier, Chain, EagerReduce, Exchange, Ring
from pcp.runtime.faults import FaultPlan
from pcp.runtime.group import Group
from pcp.runtime.in_process import pair
from pcp.runtime.loop import Loop
from pcp.runtime.operation import Operation, Pending
from pcp.runtime.param_sync import SyncReport, param_sync
from pcp.runtime.reduction import EAGER_BYTES, Reduction, bounds

if TYPE_CHECKING:
    from pcp.runtime.rendezvous import Rendezvous

Seconds = float | timedelta | None


def seconds(value: float | timedelta) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


class Communicator:
    """One member of a group. Safe to use from several threads."""

    def __init__(
        self, group: Group, *, timeout: float = 60.0, owned: Sequence[Any] = ()
    ) -> None:
        self.timeout = timeout
        """Deadline in seconds for operations that are not given one."""
        self._group = group
        self._owned = list(owned)
        self._pool = BufferPool()
        self._counters: dict[int, itertools.count] = {}
        self._syncs = itertools.count()
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def connect(
        cls,
        address: "str | Rendezvous",
        *,
        rank: int,
        world_size: int,
        timeout: float | timedelta = 60.0,
        heartbeat: float = 0.5,
        silence: float = 10.0,
        faults: FaultPlan | None = None,
    ) -> "Communicator":
        """Join a world of fixed size; rank 0 hosts the rendezvous at `address`.

        Rank 0 may pass a `Rendezvous` that already listens (the way to use
        port 0). Other ranks keep trying until somebody listens there. Raises
        ProtocolError when refused (duplicate rank, other world size, other
        protocol version), Timeout naming the ranks that did not come.
        """
        from pcp.runtime.rendezvous import meet

        return meet(
            address, rank, world_size, seconds(timeout), heartbeat, silence, faults
        )

    @classmethod
    def in_process(
        cls,
        world_size: int,
        *,
        epoch: int = 0,
        timeout: float | timedelta = 60.0,
        faults: Mapping[int, FaultPlan] | None = None,
    ) -> "list[Communicator]":
        """All members of a world inside this process, in rank order."""
        if world_size < 1:
            raise ConfigError(f"a world of {world_size} members does not exist")
        faults = faults or {}
        loops = [Loop(f"pcp-rank-{rank}") for rank in range(world_size)]
        groups = [
            Group(loop, rank, world_size, epoch, faults=faults.get(rank))
            for rank, loop in enumerate(loops)
        ]
        for a, b in itertools.combinations(range(world_size), 2):
            first, second = pair(
                (loops[a], loops[b]),
                (groups[a], groups[b]),
                ("the peer in this process", "the peer in this process"),
                epoch,
            )
            groups[a].loop.ask(lambda g=groups[a], r=b, x=first: g.admit(r, x))
            groups[b].loop.ask(lambda g=groups[b], r=a, x=second: g.admit(r, x))
        return [
            cls(group, timeout=seconds(timeout), owned=[group.loop]) for group in groups
        ]

    # Facts.

    @property
    def rank(self) -> int:
        """This member's number, from 0."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """How many members there are."""
        return self._group.world_size

    @property
    def epoch(self) -> int:
        """Which group of its endpoint this is."""
        return self._group.epoch

    @property
    def bytes_sent(self) -> int:
        """Bytes this member handed to its peers' connections, headers included."""
        return sum(link.bytes_sent for link in self._group.all_links)

    @property
    def bytes_received(self) -> int:
        """Bytes that came from the peers, headers included."""
        return sum(link.bytes_received for link in self._group.all_links)

    # Collectives.

    def all_reduce(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """`array` becomes the reduction of all members' arrays; returns it.

        `op` is sum, mean, max, min or prod. All members end with the same
        bits; `reduction` declares the order and the accumulation type.
        """
        return self.all_reduce_async(array, op, tag=tag, timeout=timeout).result()

    def all_reduce_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `all_reduce`, at once; `result()` of what it returns waits.

        The array must be left alone until then.
        """
        checked(array, "all_reduce", writable=True)
        reduction = Reduction.of(op, array.dtype)

        def write(flat: NDArray) -> NDArray:
            np.copyto(array.reshape(-1), flat.reshape(-1))
            return array

        facts = self._facts("all_reduce", array, op=op)
        if self.world_size == 1:
            return self._alone(write, array.reshape(-1))
        if array.nbytes <= EAGER_BYTES:
            operation: Operation = EagerReduce(
                self._peers(),
                facts,
                self._patience(timeout),
                rank=self.rank,
                source=array,
                reduction=reduction,
                commit=write,
            )
        else:
            operation = Ring(
                self._peers(),
                facts,
                self._patience(timeout),
                rank=self.rank,
                source=array,
                chunks=bounds(array.size, self.world_size),
                reduction=reduction,
                gather=True,
                pool=self._pool,
                commit=write,
            )
        return self._post(operation, tag)

    def reduce_scatter(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """This member's part of the reduction, split along the first dimension.

        `sizes` are the members' numbers of rows; without it, of n rows members
        get n // world_size each, the first n % world_size of them one more.
        """
        return self.reduce_scatter_async(
            array, op, sizes=sizes, tag=tag, timeout=timeout
        ).result()

    def reduce_scatter_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `reduce_scatter`, at once."""
        checked(array, "reduce_scatter")
        if array.ndim == 0:
            raise UsageError("reduce_scatter needs a first dimension to split")
        reduction = Reduction.of(op, array.dtype)
        rows = bounds(array.shape[0], self.world_size)
        if sizes is not None:
            rows = _ranges(sizes, array.shape[0], self.world_size)
        first, last = rows[self.rank]
        width = array[0].size if array.shape[0] else 0

        def take(flat: NDArray) -> NDArray:
            part = flat.reshape(-1)[first * width : last * width]
            return part.reshape(last - first, *array.shape[1:]).copy()

        facts = self._facts(
            "reduce_scatter", array, op=op, rows=[list(r) for r in rows]
        )
        if self.world_size == 1:
            return self._alone(take, array)
        if array.nbytes <= EAGER_BYTES:
            operation: Operation = EagerReduce(
                self._peers(),
                facts,
                self._patience(timeout),
                rank=self.rank,
                source=array,
                reduction=reduction,
                commit=take,
            )
        else:
            operation = Ring(
                self._peers(),
                facts,
                self._patience(timeout),
                rank=self.rank,
                source=array,
                chunks=[(a * width, b * width) for a, b in rows],
                reduction=reduction,
                gather=False,
                pool=self._pool,
                commit=take,
            )
        return self._post(operation, tag)

    def all_gather(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> NDArray:
        """All members' arrays, joined along the first dimension in rank order.

        First dimensions may differ; scalars become a vector.
        """
        return self.all_gather_async(array, tag=tag, timeout=timeout).result()

    def all_gather_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_gather`, at once."""
        checked(array, "all_gather")
        mine = array.reshape(1) if array.ndim == 0 else array
        parts = {self.rank: mine}

        def room(peer: int, theirs: dict[str, Any]) -> memoryview:
            shape = (_rows(theirs), *mine.shape[1:])
            parts[peer] = np.empty(shape, mine.dtype)
            return octets(parts[peer])

        def join() -> NDArray:
            return np.concatenate([parts[rank] for rank in range(self.world_size)])

        facts = {
            "kind": "all_gather",
            "dtype": mine.dtype.name,
            "rows": mine.shape[0],
            "row shape": list(mine.shape[1:]),
        }
        outgoing = dict.fromkeys(self._peers(), octets(mine))
        operation = Exchange(
            self._peers(),
            facts,
            self._patience(timeout),
            outgoing=outgoing,
            room=room,
            commit=join,
            free=frozenset({"rows"}),
        )
        return self._post(operation, tag)

    def broadcast(
        self,
        array: NDArray,
        root: int = 0,
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """`array` becomes the root's, on all members; returns it."""
        return self.broadcast_async(array, root, tag=tag, timeout=timeout).result()

    def broadcast_async(
        self,
        array: NDArray,
        root: int = 0,
        *,
        among: Iterable[int] | None = None,
        turn: int | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `broadcast`, at once; `among` limits it to some members.

        Members that sit some of a tag's broadcasts out say by `turn`, which
        only grows, which one they mean.
        """
        checked(array, "broadcast", writable=self.rank != root)
        members = sorted(set(range(self.world_size) if among is None else among))
        if root not in members or self.rank not in members:
            raise UsageError(f"broadcast from rank {root} among {members}")
        at = members.index(root)
        order = members[at:] + members[:at]
        at_root = self.rank == root
        scratch = array if at_root else np.empty_like(array)
        view = octets(scratch)

        def write() -> NDArray:
            if not at_root:
                np.copyto(array, scratch)
            return array

        facts = self._facts("broadcast", array, root=root)
        patience = self._patience(timeout)
        if array.nbytes > EAGER_BYTES:
            operation: Operation = Chain(
                order, facts, patience, rank=self.rank, view=view, commit=write
            )
        else:
            peers = [member for member in members if member != self.rank]
            empty = memoryview(b"")
            operation = Exchange(
                peers,
                facts,
                patience,
                outgoing=dict.fromkeys(peers, view) if at_root else {},
                room=lambda peer, _: view if peer == root else empty,
                commit=write,
            )
        return self._post(operation, tag, turn)

    def all_to_all(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> NDArray:
        """Part j of the first dimension goes to member j; theirs come back.

        The first dimension must be a multiple of the world size; the result
        has the shape of `array`, part i coming from member i.
        """
        return self.all_to_all_async(array, tag=tag, timeout=timeout).result()

    def all_to_all_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_to_all`, at once."""
        checked(array, "all_to_all")
        size = self.world_size
        if array.ndim == 0 or array.shape[0] % size:
            raise UsageError(
                f"all_to_all splits the first dimension into {size} equal parts; "
                f"the shape is {list(array.shape)}"
            )
        result = np.empty_like(array)
        rows = array.shape[0] // size
        parts = [slice(i * rows, (i + 1) * rows) for i in range(size)]

        def finish() -> NDArray:
            result[parts[self.rank]] = array[parts[self.rank]]
            return result

        operation = Exchange(
            self._peers(),
            self._facts("all_to_all", array),
            self._patience(timeout),
            outgoing={peer: octets(array[parts[peer]]) for peer in self._peers()},
            room=lambda peer, _: octets(result[parts[peer]]),
            commit=finish,
        )
        return self._post(operation, tag)

    def permute(
        self,
        array: NDArray,
        pairs: Sequence[tuple[int, int]],
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """The array of whoever sends here by `pairs` of (source, target).

        A member that is nobody's target gets zeros.
        """
        return self.permute_async(array, pairs, tag=tag, timeout=timeout).result()

    def permute_async(
        self,
        array: NDArray,
        pairs: Sequence[tuple[int, int]],
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `permute`, at once."""
        checked(array, "permute")
        routes = _routes(pairs, self.world_size)
        result = np.zeros_like(array)
        view, nothing = octets(result), memoryview(b"")
        source = next((s for s, t in routes if t == self.rank), None)
        targets = [t for s, t in routes if s == self.rank and t != self.rank]

        def finish() -> NDArray:
            if source == self.rank:
                np.copyto(result, array)
            return result

        operation = Exchange(
            self._peers(),
            self._facts("permute", array, pairs=[list(route) for route in routes]),
            self._patience(timeout),
            outgoing=dict.fromkeys(targets, octets(array)),
            room=lambda peer, _: view if peer == source else nothing,
            commit=finish,
        )
        return self._post(operation, tag)

    def send(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> None:
        """Send to the member whose `recv` has the same tag.

        Up to 32 KiB is handed over at once; more waits for the receiver.
        """
        self.send_async(array, dst, tag, timeout=timeout).result()

    def send_async(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `send`, at once."""
        checked(array, "send")
        self._check_peer(dst, "send to")
        operation = Exchange(
            [dst],
            self._facts("send/recv", array),
            self._patience(timeout),
            outgoing={dst: octets(array)},
            room=lambda peer, _: memoryview(b""),
            commit=lambda: None,
            agreed=False,
        )
        return self._post(operation, f"p2p/{self.rank}/{dst}/{tag}")

    def recv(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> NDArray:
        """`out` becomes what member `src` sends under the tag; returns it."""
        return self.recv_async(out, src, tag, timeout=timeout).result()

    def recv_async(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `recv`, at once."""
        checked(out, "recv", writable=True)
        self._check_peer(src, "receive from")
        scratch = np.empty_like(out)

        def write() -> NDArray:
            np.copyto(out, scratch)
            return out

        operation = Exchange(
            [src],
            self._facts("send/recv", out),
            self._patience(timeout),
            outgoing={},
            room=lambda peer, _: octets(scratch),
            commit=write,
            agreed=False,
        )
        return self._post(operation, f"p2p/{src}/{self.rank}/{tag}")

    def barrier(self, *, tag: str = "", timeout: Seconds = None) -> None:
        """Wait until all members are here."""
        self.barrier_async(tag=tag, timeout=timeout).result()

    def barrier_async(self, *, tag: str = "", timeout: Seconds = None) -> Pending:
        """As `barrier`, at once."""
        facts = {"kind": "barrier"}
        return self._post(Barrier(self._peers(), facts, self._patience(timeout)), tag)

    def param_sync(
        self,
        tensors: Mapping[str, NDArray],
        *,
        revision: int = 0,
        source: int | str = 0,
        timeout: Seconds = None,
    ) -> SyncReport:
        """Make `tensors` bit-identical on all members; see `param_sync`."""
        turn = next(self._syncs)
        patience = self._patience(timeout)
        return param_sync(self, tensors, revision, source, turn, patience)

    # Ending.

    def abort(self, reason: str) -> None:
        """Give up everything, on all members: from any thread, at any time.

        Every operation under way and every later one raises CollectiveAborted.
        """
        self._group.loop.call(self._group.abort, CollectiveAborted(reason))

    def close(self) -> None:
        """Leave the group; what has completed is not affected."""
        self._close(crash=False)

    def crash(self) -> None:
        """Cut all connections as if the process had died; for drills."""
        self._close(crash=True)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def own(self, things: Sequence[Any]) -> None:
        """Close these, in order, when the communicator closes."""
        self._owned += things

    # Inside.

    def _close(self, crash: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._group.loop.closed:
            self._group.loop.ask(lambda: self._group.close(crash=crash))
        for thing in self._owned:
            thing.close()

    def _peers(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _patience(self, timeout: Seconds) -> float:
        return self.timeout if timeout is None else seconds(timeout)

    def _facts(self, kind: str, array: NDArray, **more: Any) -> dict[str, Any]:
        return {
            "kind": kind,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            **more,
        }

    def _check_peer(self, peer: int, what: str) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise UsageError(
                f"rank {self.rank} of {self.world_size} cannot {what} rank {peer}"
            )

    def _alone(self, commit: Any, value: NDArray) -> Pending:
        pending = Pending()
        if self._closed:
            pending.set_exception(
                CollectiveAborted("this member closed its communicator")
            )
        else:
            pending.set_result(commit(value))
        return pending

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        loop = self._group.loop
        operation.tag = _hashed(tag)
        with self._lock:
            if self._closed or loop.closed:
                raise CollectiveAborted("this member closed its communicator")
            counter = self._counters.setdefault(operation.tag, itertools.count())
            operation.seq = next(counter) if turn is None else turn
            loop.call(self._group.post, operation)
        return operation.pending


def _hashed(tag: str) -> int:
    if not tag:
        return 0
    digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") | 1


def _rows(theirs: dict[str, Any]) -> int:
    rows = theirs.get("rows")
    if not isinstance(rows, int) or rows < 0:
        raise UsageError(f"a member gathers {rows!r} rows")
    return rows


def _ranges(sizes: Sequence[int], rows: int, members: int) -> list[tuple[int, int]]:
    """Consecutive ranges of these sizes, which must make up the rows."""
    if len(sizes) != members or sum(sizes) != rows or min(sizes) < 0:
        raise UsageError(f"sizes {list(sizes)} do not split {rows} rows in {members}")
    edges = [0, *itertools.accumulate(sizes)]
    return list(itertools.pairwise(edges))


def _routes(pairs: Sequence[tuple[int, int]], world_size: int) -> list[tuple[int, int]]:
    routes = sorted((int(s), int(t)) for s, t in pairs)
    targets = [t for _, t in routes]
    if len(set(targets)) != len(targets) or len({s for s, _ in routes}) != len(routes):
        raise UsageError(f"permute: a member sends or receives twice in {routes}")
    if any(not 0 <= rank < world_size for route in routes for rank in route):
        raise UsageError(f"permute: {routes} names ranks beyond {world_size - 1}")
    return routes
