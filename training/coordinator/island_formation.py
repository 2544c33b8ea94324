"""Which ranks make an island: those that were one, then newcomers of one host.

    complete    all ranks of an island that was are there again
    filled      newcomers take the places that an island has lost
    new         newcomers of one host
    mixed       whoever has waited long: of several hosts, of islands that were

A rank keeps its coordinate wherever it can: its part of the state need not move.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pcp.training.coordinator.events import Peer
from pcp.training.wire.messages import (
    Hello,
)


@dataclass(eq=False)
class Rank:
    """A process that said hello: one coordinate of an island, once it is in one."""

    connection: Peer
    hello: Hello
    since: float
    """When it said hello."""
    seen: float

    @property
    def host(self) -> str:
        """The machine at which its peers reach it."""
        return self.hello.address.rpartition(":")[0]


@dataclass(frozen=True)
class Formed:
    """Ranks by coordinate, and the island that they were, if they were one."""

    ranks: Sequence[Rank]
    was: str | None
    why: str


def form(waiting: Iterable[Rank], size: int, now: float, wait: float) -> list[Formed]:
    """The islands of `size` ranks that can be made of those that wait, by now.

    Ranks of different targets are never in one. For `wait` seconds a rank waits for
    those that it was together with, or for others of its host.
    """
    made: list[Formed] = []
    by_target = sorted(waiting, key=lambda rank: rank.hello.target)
    for _, group in groupby(by_target, key=lambda rank: rank.hello.target):
        made += _of_target(list(group), size, now, wait)
    return made


def _of_target(ranks: list[Rank], size: int, now: float, wait: float) -> list[Formed]:
    places, newcomers = _placed(ranks, size)
    made: list[Formed] = []
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
        made.append(Formed([held[c] for c in range(size)], name, why))
        del places[name]
    made += _of_hosts(newcomers, size)
    left = [*newcomers, *(rank for held in places.values() for rank in held.values())]
    used = {id(rank) for one in made for rank in one.ranks}
    late = [r for r in left if id(r) not in used and now - r.since > wait]
    return made + _mixed(late, size)


def _placed(
    ranks: Iterable[Rank], size: int
) -> tuple[dict[str, dict[int, Rank]], list[Rank]]:
    """Ranks that were one island, by its name and their coordinates; and the others."""
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


def _of_hosts(newcomers: Iterable[Rank], size: int) -> list[Formed]:
    """Islands of newcomers, each on one host."""
    made = []
    by_host = sorted(newcomers, key=lambda rank: rank.host)
    for host, group in groupby(by_host, key=lambda rank: rank.host):
        here = list(group)
        for start in range(0, len(here) - size + 1, size):
            made.append(Formed(here[start : start + size], None, f"all on {host}"))
    return made


def _mixed(late: list[Rank], size: int) -> list[Formed]:
    """Islands of whoever has waited long; each keeps its coordinate if that is free."""
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
        made.append(Formed(ranks, None, "they have waited for others in vain"))
        late = [rank for rank in late if rank not in ranks]
    return made
