"""The formation of islands: of ranks that were one, then of newcomers of one host.

    complete    all ranks of an earlier island are back
    filled      newcomers take the places that an island has lost
    new         newcomers of one host
    mixed       ranks that have waited long: of several hosts, of earlier islands

A rank keeps its coordinate where it can: then its part of the state need not move.

Where islands of several shapes may be formed, the largest come first. One of a smaller
shape is formed of ranks that were in one, of newcomers as long as the run has fewer of
that shape than it is to have, and of ranks that have waited long: so the ranks that an
island has left go on with the plan for fewer. They grow again once there are enough for
a larger island (`larger_islands`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pcp.training.coordinator.events import Peer
from pcp.training.wire.messages import (
    Hello,
)


@dataclass(eq=False)
class Rank:
    """A process that sent a `Hello`; in an island it has a coordinate."""

    connection: Peer
    hello: Hello
    since: float
    """When its `Hello` came."""
    seen: float

    @property
    def host(self) -> str:
        """The host at which peers reach the rank."""
        return self.hello.address.rpartition(":")[0]

    def described(self, now: float) -> dict[str, Any]:
        """The entry of the rank in a status."""
        return {
            "rank": self.hello.worker,
            "address": self.hello.address,
            "target": self.hello.target,
            "device": self.hello.device,
            "silent_seconds": round(now - self.seen, 1),
        }


@dataclass(frozen=True)
class FormedIsland:
    """The ranks of an island by coordinate, and the island that they were before."""

    ranks: Sequence[Rank]
    was: str | None
    why: str
    shape: int = 0


def form_shapes(
    waiting: Iterable[Rank],
    sizes: Sequence[int],
    lacking: Sequence[int],
    now: float,
    wait: float,
) -> list[FormedIsland]:
    """The islands that can be formed of the waiting ranks now, of any shape.

    By shape, `sizes` are the ranks of an island and `lacking` how many more islands the
    run is to have.
    """
    left, made = list(waiting), list[FormedIsland]()
    order = sorted(range(len(sizes)), key=lambda shape: -sizes[shape])
    for shape in order:
        room = None if shape == order[0] else lacking[shape]
        found = _of_shape(left, shape, sizes[shape], room, now, wait)
        used = {id(rank) for one in found for rank in one.ranks}
        left = [rank for rank in left if id(rank) not in used]
        made += found
    return made


def larger_islands(
    waiting: Sequence[Rank],
    held: Sequence[Rank],
    sizes: Sequence[int],
    lacking: Sequence[int],
    now: float,
    wait: float,
) -> list[FormedIsland]:
    """The larger islands, which the run lacks, that smaller ones could become.

    `held` are the ranks of islands beyond those that the run is to have, each with the
    shape of its island.
    """
    left, made = list(held), list[FormedIsland]()
    for shape in sorted(range(len(sizes)), key=lambda shape: -sizes[shape]):
        smaller = [rank for rank in left if sizes[rank.hello.shape] < sizes[shape]]
        free = [rank for rank in waiting if not _in(made, rank)]
        room = lacking[shape] if smaller else 0
        fit = [(rank, _anew(rank)) for rank in smaller]
        fit += _fitting(free, shape, now, wait)
        for one in _formed(fit, shape, sizes[shape], now, wait)[:room]:
            made += [one] if any(rank in smaller for rank in one.ranks) else []
        left = [rank for rank in left if not _in(made, rank)]
    return made


def _in(made: Iterable[FormedIsland], rank: Rank) -> bool:
    return any(rank in one.ranks for one in made)


def _of_shape(
    waiting: Sequence[Rank],
    shape: int,
    size: int,
    room: int | None,
    now: float,
    wait: float,
) -> list[FormedIsland]:
    """Islands of one shape, in which at most so many have newcomers alone."""
    new = [rank for rank in waiting if rank.hello.island is None]
    over = [] if room is None else new[room * size :]
    free = [r for r in waiting if r not in over or now - r.since > wait]
    return _formed(_fitting(free, shape, now, wait), shape, size, now, wait)


def _fitting(
    ranks: Iterable[Rank], shape: int, now: float, wait: float
) -> list[tuple[Rank, Rank]]:
    """Ranks that may be in an island of a shape: as before, or as newcomers."""
    fit = list[tuple[Rank, Rank]]()
    for rank in ranks:
        if rank.hello.island is not None and rank.hello.shape == shape:
            fit.append((rank, rank))
        elif rank.hello.island is None or now - rank.since > wait:
            fit.append((rank, _anew(rank)))
    return fit


def _formed(
    fit: Sequence[tuple[Rank, Rank]], shape: int, size: int, now: float, wait: float
) -> list[FormedIsland]:
    real = {id(taken): rank for rank, taken in fit}
    return [
        replace(one, ranks=[real[id(rank)] for rank in one.ranks], shape=shape)
        for one in form([taken for _, taken in fit], size, now, wait)
    ]


def _anew(rank: Rank) -> Rank:
    """The rank as a newcomer: its place was in an island of another shape."""
    hello = rank.hello.model_copy(update={"island": None, "coordinate": None})
    return Rank(rank.connection, hello, rank.since, rank.seen)


def moved(hello: Hello, island: str, shape: int, coordinate: int) -> Hello:
    """A rank's hello in a place of another shape, of whose state it holds no part."""
    place = {"island": island, "shape": shape, "coordinate": coordinate}
    held = dict.fromkeys(("bundle", "committed", "digest", "prepared"))
    return hello.model_copy(update=place | held)


def form(
    waiting: Iterable[Rank], size: int, now: float, wait: float
) -> list[FormedIsland]:
    """The islands of `size` ranks that can be formed of the waiting ranks now.

    Ranks of different targets are never in one island. For `wait` seconds a rank waits
    for the ranks of its earlier island, or for others of its host.
    """
    made: list[FormedIsland] = []
    by_target = sorted(waiting, key=lambda rank: rank.hello.target)
    for _, group in groupby(by_target, key=lambda rank: rank.hello.target):
        made += _of_target(list(group), size, now, wait)
    return made


def _of_target(
    ranks: list[Rank], size: int, now: float, wait: float
) -> list[FormedIsland]:
    places, newcomers = _placed(ranks, size)
    made: list[FormedIsland] = []
    for name in sorted(places, key=lambda name: (-len(places[name]), name)):
        held = places[name]
        lacks = [c for c in range(size) if c not in held]
        if len(lacks) > len(newcomers):
            continue
        near = next(iter(held.values())).host
        newcomers.sort(key=lambda rank: rank.host != near)
        held |= dict(zip(lacks, newcomers, strict=False))
        newcomers = newcomers[len(lacks) :]
        why = "places filled by newcomers" if lacks else "its ranks are back"
        made.append(FormedIsland([held[c] for c in range(size)], name, why))
        del places[name]
    made += _of_hosts(newcomers, size)
    left = [*newcomers, *(rank for held in places.values() for rank in held.values())]
    used = {id(rank) for one in made for rank in one.ranks}
    late = [r for r in left if id(r) not in used and now - r.since > wait]
    return made + _mixed(late, size)


def _placed(
    ranks: Iterable[Rank], size: int
) -> tuple[dict[str, dict[int, Rank]], list[Rank]]:
    """Ranks of earlier islands, by island and coordinate; and the other ranks."""
    places: dict[str, dict[int, Rank]] = {}
    others: list[Rank] = []
    for rank in ranks:
        island, at = rank.hello.island, rank.hello.coordinate
        place = places.get(island or "", {})
        if island is None or at is None or at >= size or at in place:
            others.append(rank)
        else:
            places.setdefault(island, {})[at] = rank
    return places, others


def _of_hosts(newcomers: Iterable[Rank], size: int) -> list[FormedIsland]:
    """Islands of newcomers, each on one host."""
    made = []
    by_host = sorted(newcomers, key=lambda rank: rank.host)
    for host, group in groupby(by_host, key=lambda rank: rank.host):
        here = list(group)
        for start in range(0, len(here) - size + 1, size):
            made.append(
                FormedIsland(here[start : start + size], None, f"all on {host}")
            )
    return made


def _mixed(late: list[Rank], size: int) -> list[FormedIsland]:
    """Islands of ranks that have waited long; a rank keeps a free coordinate."""
    made = []
    while len(late) >= size:
        places: dict[int, Rank] = {}
        for rank in late:
            at = rank.hello.coordinate
            if at is not None and at < size:
                places.setdefault(at, rank)
        rest = [rank for rank in late if rank not in places.values()]
        for at in range(size):
            if at not in places:
                places[at] = rest.pop()
        ranks = [places[at] for at in range(size)]
        made.append(FormedIsland(ranks, None, "they have waited for others in vain"))
        late = [rank for rank in late if rank not in ranks]
    return made
