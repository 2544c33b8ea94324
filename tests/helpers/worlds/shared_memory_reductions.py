"""What tests of reductions through one machine's memory share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.present import present
from helpers.worlds.communicators import together, world

from pcp.errors import CollectiveAborted, PcpError, PeerLost
from pcp.runtime.collectives import reduce_calls, zero_copy_reduce
from pcp.runtime.collectives.in_place_reduce import InPlaceReduce
from pcp.runtime.collectives.shared_memory_reduce import SharedMemoryReduce
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.collectives.zero_copy_reduce import ZeroCopyReduce
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.memory.shared_arrays import Place, SharedArrays
from pcp.runtime.memory.shared_segment import Segment

LARGE = 700_001
"""Elements of float32: the members share the work, by chunks."""
SMALL = 100_003
"""Of so few every member reduces all."""
CASES = [
    ("sum", np.float32, LARGE),
    ("sum", np.float32, 3_000_017),
    ("mean", np.float64, 40_001),
    ("max", ml_dtypes.bfloat16, 300_007),
    ("mean", ml_dtypes.bfloat16, 600_000),
    ("sum", np.float16, 66_000),
    ("sum", np.int8, 70_000),
    ("sum", np.bool_, 65_537),
    ("prod", np.complex64, 20_000),
    ("min", np.float32, 1 << 14),
    ("mean", np.float16, 262_145),
    ("sum", np.float32, 131_072),
]
"""Reductions, types and numbers of elements."""


def draw(rank: int, count: int, dtype: type = np.float32) -> np.ndarray:
    """A member's array, the same each time."""
    return (9 * np.random.default_rng(rank).standard_normal(count)).astype(dtype)


def shared_scratch(comm: Communicator) -> SharedScratch:
    """The memory that a member shares with the others of its machine."""
    return present(comm._context.shared_scratch)


def ways_of(
    monkeypatch: pytest.MonkeyPatch, kind: type[SharedMemoryReduce]
) -> list[str | None]:
    """How each operation of a kind went, as it ends."""
    seen: list[str | None] = []
    plain = kind.release

    def release(self: SharedMemoryReduce) -> None:
        seen.append(self._through)
        plain(self)

    monkeypatch.setattr(kind, "release", release)
    return seen


# Memory that other members can map.


def in_private_memory(monkeypatch: pytest.MonkeyPatch) -> SharedArrays:
    """A pool of shared arrays for one test alone."""
    fresh = SharedArrays()
    for module in (reduce_calls, zero_copy_reduce):
        monkeypatch.setattr(module, "ARRAYS", fresh)
    return fresh


def shared(array: np.ndarray) -> np.ndarray:
    """The same in memory that others can map."""
    copy = zero_copy_reduce.ARRAYS.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def place(array: np.ndarray) -> Place | None:
    """Where others can map an array; None for one that they cannot."""
    return zero_copy_reduce.ARRAYS.place(array)


# The two reductions.


def reaches_scratch(comm: Communicator) -> None:
    """All peers have mapped a member's memory."""
    own = shared_scratch(comm)
    assert own.reached
    assert own.possible


def reaches_arrays(comm: Communicator) -> None:
    """All peers have mapped a member's arrays."""
    others = [r for r in range(comm.world_size) if r != comm.rank]
    assert shared_scratch(comm).arrays.reached(others)


def refuses_scratch(patch: pytest.MonkeyPatch, comm: Communicator) -> None:
    """A member maps no scratch of others."""
    own = shared_scratch(comm)
    patch.setattr(own, "meet", lambda *_: own.refused())


def refuses_arrays(patch: pytest.MonkeyPatch, comm: Communicator) -> None:
    """A member maps no arrays of others."""
    patch.setattr(shared_scratch(comm).arrays, "map", lambda *_, **__: None)


def refuses_a_segment(patch: pytest.MonkeyPatch, _: Communicator) -> None:
    """The next segment is not mapped, by whichever member."""
    plain, refuse = Segment.map.__func__, [True]

    def once(cls: type, offer: Any, least: int, most: int) -> Segment | None:
        return None if refuse and refuse.pop() else plain(cls, offer, least, most)

    patch.setattr(Segment, "map", classmethod(once))


@dataclass(frozen=True)
class Way:
    """A reduction through memory: how it is called, and how it fails to map."""

    kind: type[SharedMemoryReduce]
    reduce: Callable[..., np.ndarray]
    start: Callable[..., Any]
    given: Callable[[np.ndarray], np.ndarray]
    """The array that a member calls it with."""
    warm: Callable[[Communicator], None]
    """Asserts that a member reached all others."""
    cannot_map: Callable[[pytest.MonkeyPatch, Communicator], None]
    unmaps: Callable[[pytest.MonkeyPatch, Communicator], None]
    """The same when memory was mapped before."""
    gone: tuple[type[PcpError], ...]
    """What a survivor of a death may be told."""

    @contextmanager
    def warmed(self, size: int, count: int = LARGE) -> Iterator[list[Communicator]]:
        """Members that have mapped the memory of all others."""
        with world("memory", size) as comms:
            for _ in range(2):
                together(comms, lambda c: self.reduce(c, draw(c.rank, count)))
            for comm in comms:
                self.warm(comm)
            yield comms

    def check_result(
        self, out: np.ndarray, before: np.ndarray, given: np.ndarray
    ) -> None:
        """In place the result is the array; else that is as it was."""
        if self.kind is InPlaceReduce:
            assert out is given
        else:
            assert given.tobytes() == before.tobytes()
            assert place(out) is not None


IN_PLACE = Way(
    InPlaceReduce,
    Communicator.all_reduce,
    Communicator.all_reduce_async,
    np.array,
    reaches_scratch,
    refuses_scratch,
    refuses_a_segment,
    (PeerLost,),
)
ZERO_COPY = Way(
    ZeroCopyReduce,
    Communicator.all_reduced,
    Communicator.all_reduced_async,
    shared,
    reaches_arrays,
    refuses_arrays,
    refuses_arrays,
    # Who is still reading sees that another has given up before it hears why.
    (PeerLost, CollectiveAborted),
)
OWN_ARRAYS = replace(ZERO_COPY, given=np.array)
"""Zero-copy, with arguments in memory that others cannot map."""
