"""Checkpoints of a running group, fetched from its members.

A checkpoint takes as long as moving the state once, from all members together;
`pcp.training.coordinator.checkpointing` decides when one is taken.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pcp.errors import ProtocolError, RuntimeFault, StateMismatch
from pcp.runtime import fetch_snapshot
from pcp.runtime.transport.credentials import Protection
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.island_parts import WHOLE, IslandParts, joined_digest
from pcp.training.storage.island_shapes import IslandShapes, RankPlace, joined
from pcp.training.storage.snapshots import assembled
from pcp.training.storage.state_names import OF_A_ROUND, shared_part

_FETCH_SECONDS = 120.0
_ADOPT_SECONDS = 10.0
_AT_ONCE = 16
_NOTHING = ("(the revision alone)",)
"""No tensor's name begins so."""


class Unserved(RuntimeFault):
    """The member at `address` does not hand out the state that it prepared."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


def gather(
    addresses: Sequence[str],
    round_: int,
    digest: str | None,
    protection: Protection,
    silence: float,
    parts: IslandParts | IslandShapes = WHOLE,
    shapes: Sequence[int] = (),
) -> Checkpoint:
    """The state of a round, with the replica of the member at each address.

    For islands the addresses are those of all ranks, island by island, and the tensors
    are joined; of unlike islands `shapes` has each one's. The `info` of the state says
    under "nonfinite" which tensors are not finite, and under "parts" or "shapes" how
    the state was cut, if it was.

    `Unserved` if a member holds another round, or another state, cannot be reached, or
    says nothing for `silence` seconds.
    """

    def fetch(address: str) -> safetensors_io.Arrays:
        try:
            return fetched(address)
        except ProtocolError:
            raise  # the member may have too many readers, and no fault
        except RuntimeFault as error:
            raise Unserved(str(error), address) from error

    def fetched(address: str) -> safetensors_io.Arrays:
        revision, arrays = _fetch(address, round_, protection, silence)
        if revision != round_:
            raise StateMismatch(f"{address} holds round {revision}, not {round_}")
        return arrays

    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(addresses)))) as pool:
        held = list(pool.map(fetch, addresses))
    members = list(_islands(addresses, held, parts, shapes))
    for at, _, found_there, _ in members:
        if found_there != digest:
            raise Unserved(f"{at} holds another state of round {round_}", at)
    whole = [(round_, cut.join(ranks)) for _, ranks, _, cut in members]
    found = assembled(round_, whole)
    found.info["nonfinite"] = checkpoints.nonfinite(found)
    if parts.noted is not None:
        unlike = isinstance(parts, IslandShapes)
        found.info["shapes" if unlike else "parts"] = parts.noted
    return found


def _islands(
    addresses: Sequence[str],
    held: Sequence[safetensors_io.Arrays],
    parts: IslandParts | IslandShapes,
    shapes: Sequence[int],
) -> Iterator[tuple[str, Sequence[safetensors_io.Arrays], str | None, IslandParts]]:
    """Each island's first address, its ranks' snapshots, its digest, and its parts."""
    start = 0
    if isinstance(parts, IslandParts):
        shapes = [0] * (len(held) // parts.size)
    for shape in shapes:
        cut = parts if isinstance(parts, IslandParts) else parts[shape].parts
        ranks = held[start : start + cut.size]
        shared = [shared_part(arrays) for arrays in ranks]
        if isinstance(parts, IslandParts):
            digest = joined_digest([safetensors_io.digest(own) for own in shared])
        else:
            places = [RankPlace(shape, at) for at in range(cut.size)]
            pairs = zip(shared, places, strict=True)
            digest = joined([parts.digest_of(own, place) for own, place in pairs])
        yield addresses[start], ranks, digest, cut
        start += cut.size


def _fetch(
    address: str, round_: int, protection: Protection, silence: float
) -> tuple[int, safetensors_io.Arrays]:
    """A member's snapshot, once the member has adopted the committed round."""

    def fetch(only: Sequence[str]) -> tuple[int, safetensors_io.Arrays]:
        asked: dict[str, Any] = {"silence": silence, "only": only}
        return fetch_snapshot(address, _FETCH_SECONDS, **asked, **protection.options)

    deadline = time.monotonic() + _ADOPT_SECONDS
    revision, arrays = fetch(OF_A_ROUND)
    while revision < round_ and time.monotonic() <= deadline:
        time.sleep(0.02)
        revision, arrays = fetch(_NOTHING)
        if revision >= round_:
            revision, arrays = fetch(OF_A_ROUND)
    return revision, arrays
