"""Parameter synchronisation: shared state made bit-identical by moving differences.

1. Every member digests every tensor and sends (name, type, shape, digest, revision)
   to the others: first one digest of all that, after which it ends where all digests
   are equal.
2. The source is a rank, or elected: the highest revision; among those, the
   state that most members have; among those, the lowest rank.
3. The source sends each tensor to the members with another digest only, into scratch.
4. All members digest again. Only if all digests now agree are the members' arrays
   written; otherwise StateMismatch on all members, and no array has changed. A member
   may refuse what came: it keeps its own, which its report says.

Operations under way on the same memory end before that: until one is committed on all
members, they have different bits of which no source is right.

If the source dies meanwhile, the synchronisation fails on all members. Tensors that had
arrived by then are kept aside and count as present in the next attempt, among the
members left: only the missing ones travel.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pcp import strict_json
from pcp.errors import StateMismatch, Timeout, UsageError
from pcp.runtime.group.group import Group
from pcp.runtime.memory.buffer_pool import checked, octets, overlap, spans

_DIGEST = 16
_ELECTED = "elected"
_TAG = "pcp.param_sync"
_LOOK_SECONDS = 0.002


Accept = Callable[[Mapping[str, NDArray]], bool]
"""Whether a member takes these tensors of the source's, by name, for its own."""


class SyncMember(Protocol):
    """The part of a communicator that a synchronisation uses."""

    @property
    def rank(self) -> int:
        """This member's number."""
        ...

    @property
    def world_size(self) -> int:
        """How many members there are."""
        ...

    def all_gather(
        self, array: NDArray, *, tag: str = "", timeout: Any = None
    ) -> NDArray:
        """All members' arrays, joined."""
        ...

    def broadcast_async(
        self,
        array: NDArray,
        root: int = 0,
        *,
        among: Any = None,
        turn: int | None = None,
        tag: str = "",
        timeout: Any = None,
    ) -> Any:
        """The root's array, among some members."""
        ...


@dataclass(frozen=True)
class SyncReport:
    """The outcome of a synchronisation."""

    source: int
    """The rank whose state all members have now."""
    revision: int
    """The source's revision."""
    updated: tuple[str, ...]
    """Tensors that changed on this member."""
    bytes_moved: int
    """Bytes of state this member received."""
    refused: bool = False
    """Whether this member refused the source's tensors, and keeps its own."""


def digest(array: NDArray) -> bytes:
    """A digest: equal for two arrays of equal type, shape and bits alone."""
    head = f"{array.dtype.name}{list(array.shape)}".encode()
    summary = hashlib.blake2b(head, digest_size=_DIGEST)
    summary.update(octets(array))
    return summary.digest()


def digests(tensors: Mapping[str, NDArray]) -> dict[str, bytes]:
    """The digest of every tensor; hashing uses two threads."""
    with ThreadPoolExecutor(2, thread_name_prefix="pcp-digest") as pool:
        return dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))


def param_sync(
    comm: SyncMember,
    tensors: Mapping[str, NDArray],
    revision: int,
    source: int | str,
    turn: int,
    timeout: float,
    aside: dict[str, NDArray],
    accept: Accept | None = None,
) -> SyncReport:
    """See the module; `Communicator.param_sync` calls this.

    Members must bring the same names, types and shapes (StateMismatch) and
    ask for the same source. `turn` numbers the synchronisations of the group.
    `aside` has tensors that arrived here in an attempt that failed. `accept` is asked
    before tensors of the source's are written: where it says no, none is.
    """
    tensors = {
        name: checked(array, f"param_sync of {name}", writable=True)
        for name, array in tensors.items()
    }
    if source != _ELECTED and not (
        isinstance(source, int) and 0 <= source < comm.world_size
    ):
        raise UsageError(f"source is a rank or {_ELECTED!r}, not {source!r}")
    names = sorted(tensors)
    mine = digests({name: tensors[name] for name in names})
    spare = digests(aside)
    summary = _summary(tensors, names, mine, revision, source)
    summary["aside"] = [spare[n].hex() if n in spare else "" for n in names]
    states, agreed = _exchange(comm, summary, timeout)
    _require_same(states)
    chosen = _elect(states) if source == _ELECTED else int(source)
    if agreed:
        aside.clear()
        return SyncReport(chosen, states[chosen]["revision"], (), 0)
    wanted = states[chosen]["digests"]
    fresh = {
        name: aside[name]
        for name, want in zip(names, wanted, strict=True)
        if want == spare.get(name, b"").hex() != mine[name].hex()
    }
    arrived: dict[str, NDArray] = {}
    try:
        _move(comm, tensors, names, states, chosen, turn, timeout, arrived)
    finally:
        aside.update(arrived)
    fresh.update(arrived)
    _confirm(comm, names, mine, fresh, wanted, timeout)
    aside.clear()
    moved = sum(array.nbytes for array in arrived.values())
    if accept is not None and fresh and not accept(fresh):
        return SyncReport(chosen, states[chosen]["revision"], (), moved, refused=True)
    for name, array in fresh.items():
        np.copyto(tensors[name], array)
    updated = tuple(name for name in names if name in fresh)
    return SyncReport(chosen, states[chosen]["revision"], updated, moved)


def wait_for_users(group: Group, arrays: Iterable[NDArray], patience: float) -> None:
    """Wait until no operation under way uses memory of these arrays."""
    memory = spans([array for array in arrays if isinstance(array, np.ndarray)])

    def using() -> list[str]:
        under_way = group.under_way
        return [op.title for op in under_way if overlap(spans(op.given), memory)]

    until = time.monotonic() + patience
    while found := group.loop.ask(using):
        if time.monotonic() > until:
            raise Timeout(f"param_sync waits for {', '.join(found)}, called before it")
        time.sleep(_LOOK_SECONDS)


def _summary(
    tensors: Mapping[str, NDArray],
    names: list[str],
    mine: dict[str, bytes],
    revision: int,
    source: int | str,
) -> dict:
    schema = [[n, tensors[n].dtype.name, list(tensors[n].shape)] for n in names]
    packed = strict_json.dumps([schema, source]).encode()
    return {
        "schema": hashlib.blake2b(packed, digest_size=_DIGEST).hexdigest(),
        "count": len(names),
        "revision": int(revision),
        "digests": [mine[name].hex() for name in names],
    }


def _exchange(comm: SyncMember, value: dict, timeout: float) -> tuple[list[dict], bool]:
    """All members' `value`, by rank; and whether all are equal, as usual.

    Then one exchange of a few bytes is enough.
    """
    raw = np.frombuffer(strict_json.dumps(value).encode(), np.uint8)
    mark = strict_json.dumps({k: v for k, v in value.items() if k != "aside"}).encode()
    same = hashlib.blake2b(mark, digest_size=_DIGEST).digest()
    head = np.array([[raw.size, *np.frombuffer(same, np.int64)]])
    heads = comm.all_gather(head, tag=_TAG, timeout=timeout)
    if (heads[:, 1:] == head[:, 1:]).all():
        return [value] * comm.world_size, True
    joined = comm.all_gather(raw.copy(), tag=_TAG, timeout=timeout)
    edges = np.cumsum(heads[:, 0])[:-1]
    parts = np.split(joined, edges)
    return [strict_json.parse(part.tobytes()) for part in parts], False


def _require_same(states: list[dict]) -> None:
    for rank, state in enumerate(states):
        if state["schema"] != states[0]["schema"]:
            raise StateMismatch(
                f"rank {rank} brings other tensors than rank 0 to param_sync "
                f"({state['count']} and {states[0]['count']} of them), or asks for "
                f"another source: names, types and shapes must be equal"
            )


def _elect(states: list[dict]) -> int:
    newest = max(state["revision"] for state in states)
    able = [r for r, state in enumerate(states) if state["revision"] == newest]
    votes = Counter(tuple(states[rank]["digests"]) for rank in able)
    return max(able, key=lambda rank: (votes[tuple(states[rank]["digests"])], -rank))


def _move(
    comm: SyncMember,
    tensors: Mapping[str, NDArray],
    names: list[str],
    states: list[dict],
    source: int,
    turn: int,
    timeout: float,
    arrived: dict[str, NDArray],
) -> None:
    """Receive the tensors that this member lacks into scratch, one by one."""
    for index, name in enumerate(names):
        want = states[source]["digests"][index]
        wanting = [
            rank
            for rank, state in enumerate(states)
            if want not in (state["digests"][index], state["aside"][index])
        ]
        if comm.rank != source and comm.rank not in wanting:
            continue
        if not wanting:
            continue
        array = tensors[name]
        if comm.rank != source:
            array = np.empty_like(array)
        comm.broadcast_async(
            array,
            source,
            among=[source, *wanting],
            tag=f"{_TAG}/{name}",
            turn=turn,
            timeout=timeout,
        ).result()
        if comm.rank != source:
            arrived[name] = array


def _confirm(
    comm: SyncMember,
    names: list[str],
    mine: dict[str, bytes],
    fresh: dict[str, NDArray],
    wanted: list[str],
    timeout: float,
) -> None:
    """Check that all members have the source's state, else StateMismatch on all."""
    after = {**mine, **digests(fresh)}
    wrong = [n for n, want in zip(names, wanted, strict=True) if after[n].hex() != want]
    verdict = np.array([len(wrong)], np.int64)
    counts = comm.all_gather(verdict, tag=_TAG, timeout=timeout)
    if counts.any():
        ranks = np.flatnonzero(counts).tolist()
        detail = f" (here: {', '.join(wrong[:5])})" if wrong else ""
        raise StateMismatch(
            f"after param_sync rank {', '.join(map(str, ranks))} still differs from "
            f"the source{detail}; was an array changed while it was sent?"
        )
