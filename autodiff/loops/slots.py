"""Where the states of a loop are kept when there are fewer slots than iterations.

For n iterations, n known only when the loop has run, and c slots a level. Level 1
cuts 0..n-1 into c segments of P₁ = ⌈n/c⌉, level 2 each of these into c of
P₂ = ⌈P₁/c⌉, and so on. The state before iteration j is kept if j begins a segment
of some level; a level's slots serve the segment of the level above that is being
walked back. To get the state before j one runs forward from `start(j)`, and writes
what is passed on the way to `slot(position)`.

With L levels every iteration runs L more times as long as n <= c^L; beyond that the
last level's segments are longer than one, and (P_L - 1)/2 more. Memory is L·c + 1
states whatever n is. All shapes are static.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


class Slots:
    """The arithmetic of `levels` levels of `per_level` slots, on i32 scalars.

    Emits the periods at the insertion point where it is made.
    """

    def __init__(self, trips: Value, per_level: int, levels: int) -> None:
        self.trips = trips
        self.per_level = per_level
        self._levels = range(levels)
        self.count = levels * per_level + 1  # the last is for what is not kept
        self._periods: list[Value] = []
        longer = trips
        for _ in self._levels:
            up = hlo.add(longer, self._int(per_level - 1))
            period = hlo.divide(up, self._int(per_level))
            longer = hlo.maximum(period, self._int(1))
            self._periods.append(longer)

    def slot(self, position: Value) -> Value:
        """Where the state before iteration `position` is kept; else the last slot."""
        slot = self._int(self.count - 1)
        rests = self._rests(position)
        for level in reversed(self._levels):
            before = position if level == 0 else rests[level - 1]
            digit = hlo.divide(before, self._periods[level])
            here = hlo.add(digit, self._int(level * self.per_level))
            slot = hlo.select(self._is_zero(rests[level]), here, slot)
        return slot

    def start(self, position: Value) -> Value:
        """The nearest kept state at or before `position`, walking back from the end.

        Just behind a segment's end only the state at its beginning is kept.
        """
        rests = self._rests(position)
        rests_after = self._rests(hlo.add(position, self._int(1)))
        start = hlo.subtract(position, rests[-1])
        for level in reversed(self._levels[:-1]):
            begin = hlo.subtract(position, rests[level])
            start = hlo.select(self._is_zero(rests_after[level]), begin, start)
        last = hlo.subtract(self.trips, self._int(1))
        return hlo.select(hlo.compare("EQ", position, last), self._int(0), start)

    def _rests(self, position: Value) -> list[Value]:
        """The distance from the begin of the segment around, of each level."""
        rests = []
        for period in self._periods:
            position = hlo.remainder(position, period)
            rests.append(position)
        return rests

    def _int(self, value: int) -> Value:
        return hlo.constant(value, self.trips.type)

    def _is_zero(self, value: Value) -> Value:
        return hlo.compare("EQ", value, self._int(0))
