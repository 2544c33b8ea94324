"""Piece rings: a rank's groups with islands of unlike shape, as one group.

A rank shares each piece of its tensors (`pcp.pieces`) with one rank of every other
island, and different pieces with different ranks. Each ring of ranks is a group of its
own, in which a member's number is its island's. All ranks use rings in one order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.bundle import Collective
from pcp.errors import BundleError, RuntimeFault, UsageError
from pcp.pieces import Box, Reduction, Ring
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.param_sync import Accept, SyncReport
from pcp.runtime.communicator.replica_check import chained

Owned = Callable[[Mapping[str, NDArray]], Mapping[Ring, dict[str, NDArray]]]
"""Copies of the pieces of tensors that a rank owns, by ring and name."""
Put = Callable[[dict[str, NDArray], Mapping[str, NDArray]], None]
"""Writes pieces into tensors."""


class PieceRings:
    """The rings of a rank by their coordinates, in the order in which all use them.

    `reduced(name)` says what the rank reduces of an exchange; `owned` and `put` cut
    tensors into pieces and write them back.
    """

    def __init__(
        self,
        groups: Mapping[Ring, Any],
        reduced: Callable[[str], Sequence[Reduction]],
        owned: Owned,
        put: Put,
    ) -> None:
        self._groups = dict(sorted(groups.items()))
        self._reduced, self._owned, self._put = reduced, owned, put
        first = next(iter(self._groups.values()))
        self.rank: int = first.rank
        """The number of the rank's island."""
        self.world_size: int = first.world_size
        """How many islands there are."""
        self.epoch: int = first.epoch

    @property
    def timeout(self) -> float:
        """Seconds of one exchange."""
        return next(iter(self._groups.values())).timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        for group in self._groups.values():
            group.timeout = seconds

    @property
    def fault(self) -> RuntimeFault | None:
        """The fault of the first ring that is broken."""
        faults = [group.fault for group in self._groups.values()]
        return next((fault for fault in faults if fault is not None), None)

    @property
    def bytes_sent(self) -> int:
        """Bytes sent along all rings."""
        return sum(group.bytes_sent for group in self._groups.values())

    @property
    def bytes_received(self) -> int:
        """Bytes received along all rings."""
        return sum(group.bytes_received for group in self._groups.values())

    def abort(self, reason: str) -> None:
        """Abort what is under way along any ring."""
        for group in self._groups.values():
            group.abort(reason)

    def close(self, timeout: float | None = None) -> None:
        """Leave all rings."""
        for group in self._groups.values():
            group.close(timeout=timeout)

    def of(self, what: Collective) -> Any:
        """The sums of one import of the program, as the group that makes them."""
        said = what.attributes.get("part_of")
        if said is None:
            raise BundleError(
                f"a {what.kind} of the program does not say of which tensor it has a "
                "part; compile the model again, for islands of unlike shape"
            )
        name = str(said["name"])
        return PieceExchange(self, name, self._groups, self._reduced(name))

    def all_gather(self, array: NDArray, *, tag: str = "") -> NDArray:
        """The rows of the members of all rings, ring by ring."""
        groups = self._groups.values()
        return np.concatenate([group.all_gather(array, tag=tag) for group in groups])

    def param_sync(
        self,
        tensors: dict[str, NDArray],
        revision: int = 0,
        source: int = 0,
        accept: Accept | None = None,
    ) -> SyncReport:
        """The pieces that the rank owns become those of the island `source`.

        As `Communicator.param_sync` of each ring. `accept` sees whole parts, with the
        source's pieces in place of the rank's own.
        """
        owned, reports = self._owned(tensors), []
        for ring, group in self._groups.items():
            if not (held := owned.get(ring, {})):
                continue  # the ring owns nothing: so it is for all its members

            def accepts(theirs: Mapping[str, NDArray]) -> bool:
                assert accept is not None
                names = {named.rpartition("#")[0] for named in theirs}
                parts = {name: np.array(tensors[name]) for name in names}
                self._put(parts, theirs)
                return accept(parts)

            asked = None if accept is None else accepts
            report = group.param_sync(
                held, revision=revision, source=source, accept=asked
            )
            self._put(tensors, {name: held[name] for name in report.updated})
            reports.append(report)
        return SyncReport(
            source,
            max((report.revision for report in reports), default=revision),
            tuple(name for report in reports for name in report.updated),
            sum(report.bytes_moved for report in reports),
            any(report.refused for report in reports),
        )


class PieceExchange:
    """The sums of one exchange: of each piece along its rings."""

    def __init__(
        self,
        rings: PieceRings,
        name: str,
        groups: Mapping[Ring, Any],
        reduced: Sequence[Reduction],
    ) -> None:
        self._rings, self._name = rings, name
        self._groups, self._reduced = groups, reduced

    @property
    def world_size(self) -> int:
        """How many islands there are."""
        return self._rings.world_size

    @property
    def timeout(self) -> float:
        """Seconds of one exchange."""
        return self._rings.timeout

    def all_reduced_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        compression: str | None = None,
        donate: bool = False,
        tag: str = "",
    ) -> Pending:
        """The sum over islands of the rank's part: a new array, or with `donate`
        in place of `array`. All rings carry their pieces at once."""
        if op != "sum" or compression is not None:
            how = f" in {compression}" if compression else ""
            raise UsageError(f"{tag}: islands of unlike shape take sums, not {op}{how}")
        result = array if donate else array.copy()
        started = [
            (each, self._groups[each.ring].all_reduced_async(
                _row(array, each.boxes), op, tag=self._name, donate=True
            ))
            for each in self._reduced
        ]  # fmt: skip
        return _gathered(started, result)


def _gathered(started: Sequence[tuple[Reduction, Pending]], result: NDArray) -> Pending:
    """The result once all rings have given theirs; the first fault otherwise."""
    if not started:  # a part without elements
        done = Pending()
        done.set_result(result)
        return done
    (each, pending), *others = started

    def take(row: NDArray) -> Pending:
        _unrow(row, each, result)
        return _gathered(others, result)

    return chained(pending, take)


def _row(array: NDArray, boxes: Sequence[Box]) -> NDArray:
    """These elements in one row, a copy."""
    return np.concatenate([array[box].reshape(-1) for box in boxes])


def _unrow(row: NDArray, each: Reduction, result: NDArray) -> None:
    """Write the boxes that are taken from this ring."""
    taken, start = {_key(box) for box in each.taken}, 0
    for box in each.boxes:
        view = result[box]
        stop = start + view.size
        if _key(box) in taken:
            result[box] = row[start:stop].reshape(view.shape)
        start = stop


def _key(box: Box) -> tuple[tuple[int, int], ...]:
    return tuple((side.start, side.stop) for side in box)
