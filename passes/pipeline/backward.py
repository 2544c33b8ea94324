"""The stages of the backward part, and the tail.

A *factor* is an op that finds all it reads on some stage (a mask, the slope of an
activation, the loss's own derivative); it goes where it is read. Any other is a
*cotangent* op: it stays on the stage its cotangents come from if its other operands
are there, else on the next lower stage where they are. Then ops whose readers are all
on a lower stage sink to it, if no more bytes have to go down for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.core.rewriting import refuse
from pcp.passes.pipeline.flow import FIXED, MAIN, SETTLE, TAIL, Flow
from pcp.passes.pipeline.stages import Stages

Value = ir.Value


def assign_backward(stages: Stages) -> None:
    """Add the stages of backward ops, settles and tail ops to `stages.of`."""
    backward = _Backward(stages)
    backward.rise()
    backward.sink()
    backward.place_factors()
    backward.settle()
    _check(stages)


@dataclass
class _Backward:
    """The stages on which each value can be read without sending it."""

    stages: Stages
    at: dict[Value, frozenset[int]] = field(default_factory=dict)
    factors: set[int] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        flow = self.flow
        self.numbers = [
            n
            for n, kind in enumerate(flow.kinds)
            if kind == MAIN and n not in self.stages.forward
        ]
        for number in self.stages.forward:
            for result in flow.ops[number].results:
                readers = set(flow.readers.get(result, ())) & self.stages.forward
                found = {self.stages.of[r] for r in readers | {number}}
                self.at[result] = frozenset(found)

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def _homes(self, number: int) -> frozenset[int]:
        """The stages that hold all parameters an op reads."""
        homes = self._all()
        for parameter in self.flow.parameters_of(number):
            homes &= frozenset(self.stages.homes.get(parameter, homes))
        return homes

    def _all(self) -> frozenset[int]:
        return frozenset(range(self.stages.count))

    def _near(self, number: int, values: Iterable[Value] | None = None):
        """Where an op finds its parameters, and `values` (all it reads)."""
        near = self._homes(number)
        for value in self.flow.mains(number) if values is None else values:
            near &= self.at.get(value, near)
        return near

    def _is_forward(self, value: Value) -> bool:
        return self.flow.makers[value] in self.stages.forward

    def rise(self) -> None:
        """Factors get the stages they can be on, cotangent ops the highest one."""
        for number in self.numbers:
            values = self.flow.mains(number)
            near = self._near(number)
            backward = [v for v in values if not self._is_forward(v)]
            if not near and not backward:
                near = frozenset([max((min(self.at[v]) for v in values), default=0)])
            if near and all(v in self.at for v in values):
                self.factors.add(number)
                results = self.flow.ops[number].results
                self.at.update((result, near) for result in results)
            else:
                self.stages.of[number] = self._highest(number, backward)

    def _highest(self, number: int, backward: list[Value]) -> int:
        """The highest stage that needs nothing sent up, and little sent down."""
        limit = min(self._top(v) for v in backward)
        forward = [v for v in self.flow.mains(number) if self._is_forward(v)]
        for values in (None, forward):
            near = self._near(number, values)
            if found := [s for s in near if s <= limit]:
                return max(found)
        found = [s for s in self._homes(number) if s <= limit]
        if found:
            return min(found, key=lambda s: (self._far_bytes(number, s), -s))
        refuse(
            self.flow.ops[number],
            f"stage cycle: it reads a gradient on stage {limit} and parameters of "
            f"stage {min(self._homes(number), default='several')}; gradients go from "
            "higher stages to lower ones",
        )

    def _far_bytes(self, number: int, stage: int) -> int:
        """Bytes of what an op reads that are not on a stage."""
        return sum(
            size_bytes(v)
            for v in self.flow.mains(number)
            if stage not in self.at.get(v, (self.stages.of_value(v),))
        )

    def _top(self, value: Value) -> int:
        """The highest stage on which a backward value can be."""
        if value in self.at:
            return max(self.at[value])
        return self.stages.of[self.flow.makers[value]]

    def _reader_stages(self, number: int) -> list[int]:
        """Where an op's results are read, or delivered."""
        found = []
        owners = dict(zip(self.flow.results, self.stages.owners(), strict=True))
        for result in self.flow.ops[number].results:
            for reader in self.flow.readers.get(result, ()):
                if self.flow.kinds[reader] == SETTLE:
                    owner = owners.get(self.flow.ops[reader].results[0])
                    found.append(self.stages.count if owner is None else owner)
                elif reader in self.stages.of:
                    found.append(self.stages.of[reader])
        return found

    def sink(self) -> None:
        """Move ops down to their readers."""
        for number in reversed(self.numbers):
            if number in self.factors:
                continue
            lowest = max(self._reader_stages(number), default=self.stages.count)
            if lowest >= self.stages.of[number] or lowest not in self._near(number):
                continue
            results = self.flow.ops[number].results
            down = self._bytes_down(number, lowest)
            if self._is_summed(number) or down <= sum(map(size_bytes, results)):
                self.stages.of[number] = lowest

    def _is_summed(self, number: int) -> bool:
        """Whether the op makes a gradient, which belongs where it is delivered."""
        results = self.flow.ops[number].results
        readers = [r for v in results for r in self.flow.readers.get(v, ())]
        return all(self.flow.kinds[r] == SETTLE for r in readers)

    def _bytes_down(self, number: int, stage: int) -> int:
        """Bytes that have to be sent if the op moves to `stage`."""
        total = 0
        for value in self.flow.mains(number):
            if value in self.at or self.stages.of_value(value) == stage:
                continue
            others = set(self.flow.readers[value]) - {number}
            if not any(self.stages.of.get(other) == stage for other in others):
                total += size_bytes(value)
        return total

    def place_factors(self) -> None:
        """Where they are read, or the next higher stage that has what they read."""
        for number in sorted(self.factors, reverse=True):
            near = self.at[self.flow.ops[number].results[0]]
            if self._is_summed(number):
                values = self.flow.mains(number)
                near |= self._near(number, filter(self._is_forward, values))
            readers = [s for s in self._reader_stages(number) if s < self.stages.count]
            highest = max(readers, default=max(near))
            above = [s for s in near if s >= highest]
            self.stages.of[number] = min(above, default=highest)

    def settle(self) -> None:
        """A sum is made where its parts are; the tail is where it reads from."""
        for number, kind in enumerate(self.flow.kinds):
            if kind == SETTLE:
                source = self.flow.ops[number].operands[0]
                stage = self.stages.of_value(source)
                if stage is None:
                    refuse(self.flow.ops[number], "sums what depends on no data")
                self.stages.of[number] = stage
            elif kind == TAIL:
                self.stages.of[number] = self._tail(number)

    def _tail(self, number: int) -> int:
        found = [self.stages.of_value(v) for v in self.flow.reads[number]]
        lowest = min(s for s in found if s is not None)
        homes = self._homes(number)
        return lowest if lowest in homes or not homes else max(homes)


def _check(stages: Stages) -> None:
    """Activations go up, cotangents down; anything else is a stage cycle."""
    flow = stages.flow
    for number, kind in enumerate(flow.kinds):
        if kind == FIXED or number in stages.forward:
            continue
        for value in flow.reads[number]:
            maker = flow.makers.get(value)
            if maker is None or maker in stages.forward or maker not in stages.of:
                continue
            if flow.kinds[maker] == kind and stages.of[maker] < stages.of[number]:
                refuse(
                    flow.ops[number],
                    f"stage cycle: it is on stage {stages.of[number]} and reads a "
                    f"gradient of stage {stages.of[maker]}",
                )
