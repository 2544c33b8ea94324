"""Checks of the arguments of calls, and their facts for descriptors."""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.descriptor import FixedDescriptor
from pcp.runtime.memory.dtypes import name_of


def facts_of(kind: str, array: NDArray, **more: Any) -> dict[str, Any]:
    """The descriptor of a call: the facts that all members must agree on."""
    dtype, shape = name_of(array.dtype), list(array.shape)
    return {"kind": kind, "dtype": dtype, "shape": shape, **more}


@lru_cache(1024)
def facts_of_sum(
    kind: str, dtype: np.dtype, shape: tuple[int, ...], op: str
) -> FixedDescriptor:
    """As `facts_of`, of a reduction without other facts; the same for calls alike.

    `op` is the name of a reduction: numbers of other types that are equal, and are
    written in other bytes, are never among these arguments.
    """
    return FixedDescriptor(kind=kind, dtype=name_of(dtype), shape=list(shape), op=op)


def check_peer(rank: int, world_size: int, peer: int, what: str) -> None:
    """UsageError when there is no such other member."""
    if not 0 <= peer < world_size or peer == rank:
        raise UsageError(f"rank {rank} of {world_size} cannot {what} rank {peer}")


def check_root(world_size: int, root: int, what: str) -> None:
    """UsageError when there is no such member."""
    if not 0 <= root < world_size:
        raise UsageError(f"there is no rank {root} to {what}: {world_size} members")


def rows_of(theirs: dict[str, Any]) -> int:
    """The number of rows in a gather's descriptor; ProtocolError if it is none."""
    return count_of(theirs.get("rows"))


def count_of(number: object) -> int:
    """A number of rows from a peer; ProtocolError if it is none."""
    if type(number) is not int or number < 0:
        raise ProtocolError(f"a member has {number!r} rows")
    return number


def ranges_of(sizes: Sequence[int], rows: int, members: int) -> list[tuple[int, int]]:
    """Consecutive ranges of these sizes, which must make up the rows."""
    if len(sizes) != members or sum(sizes) != rows or min(sizes) < 0:
        raise UsageError(f"sizes {list(sizes)} do not split {rows} rows in {members}")
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def routes_of(pairs: Sequence[Sequence[int]], world_size: int) -> list[tuple[int, int]]:
    """The pairs in order; UsageError when a member sends or receives twice."""
    routes = sorted((int(s), int(t)) for s, t in pairs)
    targets = [t for _, t in routes]
    if len(set(targets)) != len(targets) or len({s for s, _ in routes}) != len(routes):
        raise UsageError(f"permute: a member sends or receives twice in {routes}")
    if any(not 0 <= rank < world_size for route in routes for rank in route):
        raise UsageError(f"permute: {routes} names ranks beyond {world_size - 1}")
    return routes
