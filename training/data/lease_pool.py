"""Leases on samples: a pool of positions, given out in ranges.

Positions are numbers of samples through all epochs (`pcp.training.data.corpus`). A
lease is a list of ranges; every range is a multiple of the quantum, the samples of one
inner step. The leases of a dead worker return to the pool and are given out again
before new samples, so no sample is lost; committed samples never return.
"""

from collections.abc import Iterable, Sequence

from pcp.errors import ConfigError, StateMismatch

Range = tuple[int, int]
"""Positions from the first number up to, but not including, the second."""


def quantum(effective_batch: int | None, batch: int) -> int:
    """The samples of one inner step of one worker, in whole batches of the model."""
    wanted = effective_batch or batch
    if wanted % batch:
        raise ConfigError(
            f"effective_batch_size: {wanted} is no multiple of the batch {batch}"
        )
    return wanted


def size(ranges: Iterable[Range]) -> int:
    """The number of samples in `ranges`."""
    total = 0
    for start, stop in ranges:
        total += stop - start
    return total


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same positions, sorted, with touching ranges joined."""
    joined: list[Range] = []
    end = 0
    for start, stop in sorted(ranges):
        if not joined or start > end:
            if start < stop:
                joined.append((start, stop))
                end = stop
        elif stop > end:
            joined[-1] = (joined[-1][0], stop)
            end = stop
    return joined


def overlap(left: Sequence[Range], right: Sequence[Range]) -> Range | None:
    """A range that two sorted lists both have, or None."""
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        stop = min(left[i][1], right[j][1])
        if start < stop:
            return start, stop
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return None


def complement(taken: Iterable[Range], total: int) -> list[Range]:
    """The ranges of `[0, total)` that are not in `taken`."""
    free, at = [], 0
    for start, stop in merged((a, min(b, total)) for a, b in taken):
        if start > at:
            free.append((at, start))
        at = max(at, stop)
    if at < total:
        free.append((at, total))
    return free


class LeasePool:
    """The positions that are neither leased nor used.

    `total` positions are given out in multiples of `quantum`; a smaller remainder is
    never given out.
    """

    def __init__(self, total: int, quantum: int, taken: Iterable[Range] = ()) -> None:
        if quantum <= 0 or total < quantum:
            raise ConfigError(
                f"{total} samples are less than one inner step of {quantum}; "
                "use more data, more epochs or a smaller effective_batch_size"
            )
        self.total = total // quantum * quantum
        self.quantum = quantum
        self._free = complement(taken, self.total)

    @property
    def available(self) -> int:
        """Samples that can be given out."""
        return size(self._free)

    def steps_for(self, workers: int, at_most: int) -> int:
        """The inner steps for which each of `workers` can get samples; 0 at the end."""
        return min(at_most, self.available // (self.quantum * workers))

    def take(self, steps: int) -> list[Range]:
        """Give out the lowest positions for `steps` inner steps."""
        wanted = steps * self.quantum
        if wanted > self.available:
            raise StateMismatch(f"{wanted} samples asked, {self.available} are left")
        lease: list[Range] = []
        while wanted:
            start, stop = self._free.pop(0)
            cut = min(stop, start + wanted)
            lease.append((start, cut))
            wanted -= cut - start
            if cut < stop:
                self._free.insert(0, (cut, stop))
        return lease

    def give_back(self, ranges: Sequence[Range]) -> None:
        """Return positions that were given out and not used."""
        if overlap(sorted(ranges), self._free) or size(merged(ranges)) != size(ranges):
            raise StateMismatch(f"samples {list(ranges)} were returned twice")
        self._free = merged([*self._free, *ranges])
