"""Replica comparison: whether copies of one part of a tensor have equal bits.

Members exchange a digest of each tensor, 32 bytes with the place of their part; the
values of a tensor are sent only where copies differ, for the size of the difference.
All members get the same digests, so all reach the same verdict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from pcp.errors import StateMismatch
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.param_sync import digest
from pcp.runtime.communicator.replica_check import elected

#: The most tensors for which the error has the size of the difference.
SHOWN = 4

_WORD = 16
_TAG = "pcp.copies"


@dataclass(frozen=True)
class Copy:
    """A member's part of a tensor: its place in the whole, None without a part."""

    name: str
    part: tuple[tuple[int, int], ...] = ()
    array: NDArray | None = None


@dataclass(frozen=True)
class CopyDifference:
    """The ranks with other bits of tensor `number` than rank `source`."""

    number: int
    source: int
    ranks: tuple[int, ...]


def check_copies(
    comm: Communicator, copies: Sequence[Copy], members: Sequence[str], when: str
) -> None:
    """Raise `StateMismatch` on all members if two have different bits of one part.

    All members call it with the same tensors in the same order. `members` are their
    names, `when` how the message begins.
    """
    own = np.stack([_row(copy) for copy in copies])
    rows = comm.all_gather(own[None], tag=f"{_TAG}/digests")
    found = list(_apart(rows))
    if not found:
        return
    said = [
        _sentence(copies[one.number].name, one, amounts, members)
        for one, amounts in zip(found, _measured(comm, copies, found), strict=False)
    ]
    more = len(found) - len(said)
    said += [f"{more} more tensors differ"] if more else []
    raise StateMismatch(
        f"{when}: members hold other bits of what is to be the same: {'; '.join(said)}"
    )


def difference(one: NDArray, other: NDArray) -> tuple[float, float]:
    """The largest |a - b|, and in units in the last place, which are 0 for integers.

    NaN where only one of two numbers is NaN.
    """
    if one.dtype.kind in "biu":
        apart = one.astype(object) - other.astype(object)
        return float(np.abs(apart).max(initial=0)), 0.0
    if one.dtype.kind == "c":
        real = np.dtype(f"f{one.dtype.itemsize // 2}")
        return difference(one.view(real), other.view(real))
    wide = [x.astype(np.float64) for x in (one, other)]
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(wide[0] - wide[1])
    apart[np.equal(*wide) | (np.isnan(wide[0]) & np.isnan(wide[1]))] = 0
    counts = [_ordered(x) for x in (one, other)]
    between = np.maximum(*counts) - np.minimum(*counts)  # wraps to what it is, unsigned
    return float(apart.max(initial=0)), float(between.view(np.uint64).max(initial=0))


def _ordered(array: NDArray) -> NDArray:
    """Floats as numbers that count them, from the least to the greatest."""
    bits = array.view(f"i{array.dtype.itemsize}").astype(np.int64)
    least = -(2 ** (8 * array.dtype.itemsize - 1))
    return np.where(bits < 0, least - bits, bits)


# --- rows that members exchange ---


def _row(copy: Copy) -> NDArray:
    """The row of a copy: whether there is one, its place, and a digest of its bits."""
    if copy.array is None:
        return np.zeros(1 + 2 * _WORD, np.uint8)
    part = blake2b(repr(copy.part).encode(), digest_size=_WORD).digest()
    row = b"\x01" + part + digest(copy.array)
    return np.frombuffer(row, np.uint8)


def _apart(rows: NDArray) -> Iterator[CopyDifference]:
    """The ranks that differ from the elected copy, for each part that does."""
    for number in range(rows.shape[1]):
        parts: dict[bytes, list[int]] = {}
        held = [rows[rank, number].tobytes() for rank in range(len(rows))]
        for rank, row in enumerate(held):
            if row[0]:
                parts.setdefault(row[: 1 + _WORD], []).append(rank)
        for ranks in parts.values():
            source = ranks[elected([held[rank] for rank in ranks])]
            wrong = tuple(rank for rank in ranks if held[rank] != held[source])
            if wrong:
                yield CopyDifference(number, source, wrong)


def _measured(
    comm: Communicator, copies: Sequence[Copy], found: Sequence[CopyDifference]
) -> list[NDArray]:
    """(largest difference, units in the last place) by rank, of the first ones."""
    own = np.zeros((min(SHOWN, len(found)), 2))
    for i, one in enumerate(found[: len(own)]):
        array = copies[one.number].array
        if array is None:
            continue
        flat = np.ascontiguousarray(array).reshape(-1)
        if comm.rank == one.source:
            for rank in one.ranks:
                comm.send(flat.view(np.uint8), rank, tag=i)
        elif comm.rank in one.ranks:
            theirs = np.empty(flat.nbytes, np.uint8)
            comm.recv(theirs, one.source, tag=i)
            own[i] = difference(flat, theirs.view(flat.dtype))
    told = comm.all_gather(own[None], tag=f"{_TAG}/amounts")
    return [told[:, i] for i in range(len(own))]


def _sentence(
    name: str, one: CopyDifference, amounts: NDArray, members: Sequence[str]
) -> str:
    each = []
    for rank in one.ranks:
        most, units = amounts[rank]
        last = f" ({units:.0f} units in the last place)" if units else ""
        each.append(f"{members[rank]} by up to {most:.3g}{last}")
    return f"{name} on {', '.join(each)} from {members[one.source]}"
