"""Schedules: the transfers of a reduction to all members, in rounds.

A `MemberSchedule` is one member's part in a schedule: its transfers as it sees them,
and what each of them waits for.

A schedule is the same list on every member: rounds of transfers of chunks of the
array. In a round all sends leave first, then what arrives is added (`reduce`) or
taken over. That alone fixes the order of every sum, so `simulate` says on one
machine what all members hold at the end, to the bit. What is taken over is always
finished: divided and rounded by the member that was the last to add.

    ring                2(N-1) rounds between neighbours (Patarasuk & Yuan, 2009);
                        each chunk is summed on its way round, by all in turn
    halving_doubling    2 log2 N rounds, rounded up, and for any N no more bytes than a
                        ring; each chunk is summed by its member (Thakur, Rabenseifner
                        & Gropp, 2005; on a circle, for any N: Träff, 2024)
    tree                up a binomial tree to rank 0 and down again; latency of
                        2 log2 N, all bytes on every edge
    central             all members to rank 0, and back
    two_level:k         nodes of k consecutive ranks: reduced within a node, then
                        between the nodes, then gathered within the node; between
                        nodes only 2 array sizes per node travel
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError, nearest
from pcp.runtime.collectives.reduction import Reduction, bounds, declared

DIRECT = ("eager", "ring")
"""Algorithms that a size or a ring, and not a name alone, decides about."""
_WHOLE = 4
"""Chunks of an array that is sent whole: they set the size of its segments."""
_NAMES = (*DIRECT, "halving_doubling", "tree", "central", "two_level:k")


@dataclass(frozen=True)
class Transfer:
    """Chunks [first, last) go from `src` to `dst`, in a round."""

    round: int
    src: int
    dst: int
    first: int
    last: int
    reduce: bool


@dataclass(frozen=True)
class Schedule:
    """The transfers of one algorithm for one number of members."""

    name: str
    members: int
    chunks: int
    transfers: tuple[Transfer, ...]
    sum_travels: bool = False
    """Whether the left operand is what arrives, which shows in zeros of two signs."""

    @cached_property
    def of_rank(self) -> dict[int, list[Transfer]]:
        """The transfers of each member, in the order in which its sums need them."""
        found: dict[int, list[Transfer]] = {rank: [] for rank in range(self.members)}
        for transfer in self.transfers:
            found[transfer.src].append(transfer)
            found[transfer.dst].append(transfer)
        for rank, own in found.items():
            own.sort(key=lambda t, rank=rank: (t.round, t.src != rank))
        return found


@lru_cache(8)
def schedule(name: str, members: int) -> Schedule:
    """The schedule of an algorithm; UsageError lists the algorithms."""
    kind, _, number = name.partition(":")
    if kind == "two_level":
        return _two_level(name, members, _node_size(name, number))
    if name == "ring":
        return ring(tuple(range(members)))
    if name not in _BUILDERS:
        raise UsageError(
            f"unknown algorithm {name!r}; there are {', '.join(_NAMES)}."
            f"{nearest(name, _NAMES)}"
        )
    chunks, build = _BUILDERS[name]
    transfers = tuple(build(members))
    return Schedule(name, members, chunks(members), transfers)


@lru_cache(8)
def ring(
    order: tuple[int, ...], *, gather: bool = True, root: int | None = None
) -> Schedule:
    """Chunk r is summed along the ring, from behind rank r to it, who owns it then.

    `order` is how the ranks stand. With `root` the owners send it their chunks, with
    `gather` all members get all, without both each one has its own.
    """
    transfers = [*_around(order, 1, 0, True)]
    if root is not None:
        last = len(order) - 1
        transfers += [
            Transfer(last, r, root, r, r + 1, False) for r in order if r != root
        ]
    elif gather:
        transfers += _around(order, 0, len(order) - 1, False)
    return Schedule("ring", len(order), len(order), tuple(transfers), True)


def _around(
    order: Sequence[int], behind: int, first: int, reduce: bool
) -> Iterator[Transfer]:
    """Once round, from round `first` on; members begin with the chunk so far behind."""
    size = len(order)
    for step in range(size - 1):
        for place, rank in enumerate(order):
            chunk, after = order[(place - behind - step) % size], (place + 1) % size
            yield Transfer(first + step, rank, order[after], chunk, chunk + 1, reduce)


def simulate(name: str, arrays: Sequence[NDArray], op: str = "sum") -> list[NDArray]:
    """The result of each member after the algorithm, for these operands."""
    reduction = Reduction.of(op, arrays[0].dtype)
    plan = schedule(name, len(arrays))
    work = [np.array(reduction.widen(a.reshape(-1))) for a in arrays]
    chunks = bounds(work[0].size, plan.chunks)
    for which in range(_rounds(plan)):
        now = [t for t in plan.transfers if t.round == which]
        spans = [slice(chunks[t.first][0], chunks[t.last - 1][1]) for t in now]
        sent = [work[t.src][s].copy() for t, s in zip(now, spans, strict=True)]
        for transfer, span, data in zip(now, spans, sent, strict=True):
            target = work[transfer.dst][span]
            if transfer.reduce:
                pair = (data, target) if plan.sum_travels else (target, data)
                reduction.combine(*pair, target)
            else:
                target[:] = data
    results = [np.empty(a.shape, a.dtype) for a in arrays]
    for total, out in zip(work, results, strict=True):
        reduction.finish(total, len(arrays), out.reshape(-1))
    return results


def reference(
    arrays: Sequence[NDArray],
    op: str = "sum",
    *,
    ring: bool | None = None,
    order: Sequence[int] | None = None,
) -> NDArray:
    """The result of all_reduce for these members' arrays, to the bit.

    `ring=None` takes the declared order for the size; `order` is how the members
    stood along the ring. The oracle of the tests and of replays.
    """
    first = arrays[0]
    reduction = Reduction.of(op, first.dtype)
    if ring is None:
        choice = declared(first.nbytes, len(arrays))
        if choice not in ("eager", "ring"):
            return simulate(choice, arrays, op)[0]
        ring = choice == "ring"
    if not ring or len(arrays) == 1:
        return reduction.sequential(arrays)
    flat = [a.reshape(-1) for a in arrays]
    out = np.empty_like(flat[0])
    size = len(arrays)
    ranks = list(range(size) if order is None else order)
    for chunk, (start, stop) in enumerate(bounds(out.size, size)):
        behind = ranks.index(chunk) + 1
        turns = ranks[behind:] + ranks[:behind]
        out[start:stop] = reduction.sequential([flat[r][start:stop] for r in turns])
    return out.reshape(first.shape)


def _rounds(plan: Schedule) -> int:
    return max((t.round for t in plan.transfers), default=-1) + 1


def _halving_doubling(members: int) -> Iterator[Transfer]:
    # Each member holds sums of `held` chunks from its own on, on the circle of all.
    which, held, history = 0, members, list[tuple[int, int]]()
    while held > 1:
        less = (held + 1) // 2
        history.append((less, held))
        # The middle one of an odd number got nothing: it is no sum, but an own value.
        sums = held - less - (which == 1 and members % 2)
        for rank in range(members):
            to = (rank + less) % members
            yield from _arc(members, (which, rank, to), to, sums, True)
            own = (to + sums) % members
            yield from _arc(members, (which, rank, to), own, held - less - sums, True)
        which, held = which + 1, less
    for less, held in reversed(history):
        for rank in range(members):
            to = (rank - less) % members
            yield from _arc(members, (which, rank, to), rank, held - less, False)
        which += 1


def _arc(
    members: int, where: tuple[int, int, int], first: int, count: int, reduce: bool
) -> Iterator[Transfer]:
    """Chunks [first, first + count) on the circle of all the members' chunks.

    `where` is the round, the source and the destination.
    """
    last = first + count
    if count:
        yield Transfer(*where, first, min(last, members), reduce)
    if last > members:
        yield Transfer(*where, 0, last - members, reduce)


def _tree(members: int) -> Iterator[Transfer]:
    masks = [1 << i for i in range((members - 1).bit_length())]
    for which, mask in enumerate(masks):
        for rank in range(mask, members, 2 * mask):
            yield Transfer(which, rank, rank - mask, 0, _WHOLE, True)
    for which, mask in enumerate(reversed(masks), len(masks)):
        for rank in range(mask, members, 2 * mask):
            yield Transfer(which, rank - mask, rank, 0, _WHOLE, False)


def _central(members: int) -> Iterator[Transfer]:
    for rank in range(1, members):
        yield Transfer(0, rank, 0, 0, _WHOLE, True)
    for rank in range(1, members):
        yield Transfer(1, 0, rank, 0, _WHOLE, False)


def _two_level(name: str, members: int, size: int) -> Schedule:
    nodes = [
        range(start, min(start + size, members)) for start in range(0, members, size)
    ]

    def owner(node: range, chunk: int) -> int:
        return node[chunk % len(node)]

    def build() -> Iterator[Transfer]:
        for node in nodes:
            for chunk in range(size):
                own = owner(node, chunk)
                for rank in node:
                    if rank != own:
                        yield Transfer(0, rank, own, chunk, chunk + 1, True)
        for chunk in range(size):
            head = owner(nodes[0], chunk)
            for node in nodes[1:]:
                tail = owner(node, chunk)
                yield Transfer(1, tail, head, chunk, chunk + 1, True)
                yield Transfer(2, head, tail, chunk, chunk + 1, False)
        for node in nodes:
            for chunk in range(size):
                own = owner(node, chunk)
                for rank in node:
                    if rank != own:
                        yield Transfer(3, own, rank, chunk, chunk + 1, False)

    ordered = tuple(sorted(build(), key=lambda t: t.round))
    return Schedule(name, members, size, ordered)


def _node_size(name: str, number: str) -> int:
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(
            f"algorithm {name!r} must name how many members a node has, as in "
            f"'two_level:4'"
        )
    return int(number)


_BUILDERS = {
    "halving_doubling": (lambda members: members, _halving_doubling),
    "tree": (lambda members: _WHOLE, _tree),
    "central": (lambda members: _WHOLE, _central),
}


@dataclass(frozen=True, slots=True)
class Move:
    """One transfer as its sender or receiver sees it, among that member's moves."""

    peer: int
    round: int
    chunks: tuple[int, int]
    """From the first up to, and without, the last."""
    sends: bool
    reduce: bool
    after: tuple[int, ...]
    """The moves that bring what this one sends or adds to; none: the own values."""
    then: tuple[int, ...]
    """The moves that are after this one."""
    ends: bool
    """Whether nothing is added to its chunks any more, here or elsewhere."""


@dataclass(frozen=True)
class MemberSchedule:
    """The part of one member in a schedule, the same for arrays of all sizes."""

    members: int
    chunks: int
    sum_travels: bool
    moves: tuple[Move, ...]
    incoming: dict[tuple[int, int], list[int]]
    """The moves that receive, by peer and round."""

    @staticmethod
    def of(plan: Schedule, rank: int) -> "MemberSchedule":
        """The moves of a rank, in the order in which its sums need them."""
        moves = tuple(_moves(plan.of_rank[rank], rank))
        facts = plan.members, plan.chunks, plan.sum_travels
        incoming: dict[tuple[int, int], list[int]] = {}
        for index, move in enumerate(moves):
            if not move.sends:
                incoming.setdefault((move.peer, move.round), []).append(index)
        return MemberSchedule(*facts, moves, incoming)


def _moves(own: Sequence[Transfer], rank: int) -> Iterator[Move]:
    added = {c: i for i, t in enumerate(own) if t.reduce for c in _chunks(t)}
    after, then = _origins(own, rank), [list[int]() for _ in own]
    for index, origins in enumerate(after):
        for before in origins:
            then[before].append(index)
    for index, t in enumerate(own):
        sends = t.src == rank
        peer = t.dst if sends else t.src
        ends = t.reduce and not sends and all(added[c] == index for c in _chunks(t))
        what = (peer, t.round, (t.first, t.last), sends, t.reduce)
        yield Move(*what, after[index], tuple(then[index]), ends)


def _origins(own: Sequence[Transfer], rank: int) -> list[tuple[int, ...]]:
    """For each transfer the ones that brought what it sends or adds to."""
    latest: dict[int, int] = {}
    origins = []
    for index, t in enumerate(own):
        waits = t.src == rank or t.reduce
        found = {latest[c] for c in _chunks(t) if waits and c in latest}
        if found and not all(c in latest for c in _chunks(t)):
            raise ValueError(f"{t}: some of it are sums and some are own values")
        origins.append(tuple(sorted(found)))
        if t.dst == rank:
            latest |= dict.fromkeys(_chunks(t), index)
    return origins


def _chunks(transfer: Transfer) -> range:
    return range(transfer.first, transfer.last)


@lru_cache(1024)
def by_name(name: str, members: int, rank: int) -> MemberSchedule:
    """A rank's part in the algorithm of this name; UsageError."""
    return MemberSchedule.of(schedule(name, members), rank)


@lru_cache(1024)
def along_ring(
    order: tuple[int, ...], rank: int, *, gather: bool = True, root: int | None = None
) -> MemberSchedule:
    """A rank's part in a `ring`."""
    return MemberSchedule.of(ring(order, gather=gather, root=root), rank)
