"""What one task does: a part is the work of one stage in one direction.

Every microbatch has a task for each part but `opt`, which runs once, behind the sums.
A stage has several of these where it waits for others in between: rounds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.dialect.schedule import DIRECTIONS
from pcp.passes.pipeline.flow import FIXED, MAIN, SETTLE, TAIL, Flow
from pcp.passes.pipeline.stages import Stages

Value = ir.Value

FWD, BWD, WGRAD, OPT = DIRECTIONS

#: (stage, direction, round)
Key = tuple[int, str, int]


@dataclass
class StagePart:
    """Ops by number; what they read, what others read of them, what is summed.

    `shared`: fixed values in front of the ops that a stage makes only once.
    """

    key: Key
    ops: list[int] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    shared: list[Value] = field(default_factory=list)

    @property
    def stage(self) -> int:
        """Where it runs."""
        return self.key[0]


def parts_of(stages: Stages) -> dict[Key, StagePart]:
    """All parts, in the order in which one microbatch runs them."""
    cut = _Cut(stages)
    cut.collect()
    cut.borders()
    order = sorted(cut.parts, key=_rank)
    return {key: cut.parts[key] for key in order}


def _rank(key: Key) -> tuple[int, int, int]:
    """Up through the forward parts, then down through all others."""
    stage, direction, round_ = key
    if direction == FWD:
        return 0, stage, 0
    if direction == OPT:
        return 2, round_, -stage
    return 1, -stage, (BWD, WGRAD).index(direction)


def behind(flow: Flow, values: Iterable[Value]) -> Iterator[Value]:
    """The values and arguments that are to be at hand to read `values`.

    Fixed values are made again, from the arguments behind them.
    """
    seen: set[Value] = set()
    for value in values:
        found = flow.roots(value) if flow.kind(value) == FIXED else [value]
        order = (
            sorted(found, key=lambda v: _place(flow, v)) if len(found) > 1 else found
        )
        for one in order:
            if one not in seen:
                seen.add(one)
                yield one


def _place(flow: Flow, value: Value) -> tuple[int, int]:
    """Arguments first, then values in the order in which they are made."""
    if value in flow.makers:
        return flow.makers[value] + 1, ir.OpResult(value).result_number
    return 0, ir.BlockArgument(value).arg_number


@dataclass
class _Cut:
    stages: Stages
    parts: dict[Key, StagePart] = field(default_factory=dict)
    part_of: dict[int, Key] = field(default_factory=dict)

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def collect(self) -> None:
        """Each op into its part."""
        late = self._weight_gradients()
        for number, kind in enumerate(self.flow.kinds):
            stage = self.stages.of.get(number)
            if stage is None or kind in (FIXED, SETTLE):
                continue
            direction = WGRAD if number in late else BWD
            if kind == TAIL:
                direction = OPT
            elif number in self.stages.forward:
                direction = FWD
            round_ = self._round(number) if kind == TAIL else 0
            self._join((stage, direction, round_), number)
        for number, kind in enumerate(self.flow.kinds):
            if kind == SETTLE:
                source = self.flow.makers[self.flow.ops[number].operands[0]]
                self.part_of[number] = self.part_of[source]
                self.parts[self.part_of[source]].sums.append(number)

    def _round(self, number: int) -> int:
        """How often a tail op's stage has waited for another before it."""
        read = behind(self.flow, self.flow.reads[number])
        return self._ready(read, self.stages.of[number])

    def _ready(self, values: Iterable[Value], stage: int) -> int:
        """The round of a stage in which it can read these."""
        rounds = [0]
        for value in values:
            key = self.part_of.get(self.flow.makers.get(value, -1))
            if key is not None and key[1] == OPT:
                rounds.append(key[2] + (key[0] != stage))
        return max(rounds)

    def _join(self, key: Key, number: int) -> None:
        self.part_of[number] = key
        self.parts.setdefault(key, StagePart(key)).ops.append(number)

    def _weight_gradients(self) -> set[int]:
        """Backward ops that no other stage waits for, on stages where one does."""
        flow, of = self.flow, self.stages.of
        backward = {
            n
            for n, kind in enumerate(flow.kinds)
            if kind == MAIN and n not in self.stages.forward
        }
        awaited: set[int] = set()
        for number in sorted(backward, reverse=True):
            readers = {
                r
                for result in flow.ops[number].results
                for r in flow.readers.get(result, ())
                if r in backward
            }
            if any(of[r] != of[number] or r in awaited for r in readers):
                awaited.add(number)
        waiting = {of[number] for number in awaited}
        return {n for n in backward - awaited if of[n] in waiting}

    def borders(self) -> None:
        """What crosses the borders of the parts."""
        for part in list(self.parts.values()):
            read = [v for n in part.ops for v in self.flow.reads[n]]
            for value in behind(self.flow, read):
                self._input(part, value)
            part.shared = self.flow.shared(read)
        deliveries = self.stages.deliveries()
        for value, stages in zip(self.flow.results, deliveries, strict=True):
            maker = self.flow.makers.get(value)
            if maker is not None and maker in self.part_of:
                self._output(self.part_of[maker], value)
            else:
                for stage in stages:
                    self._give(stage, value)

    def _input(self, part: StagePart, value: Value) -> None:
        maker = self.flow.makers.get(value)
        if value in part.inputs:
            return
        if maker is None:
            part.inputs.append(value)
        elif self.part_of[maker] != part.key or self.flow.kinds[maker] == SETTLE:
            part.inputs.append(value)
            self._output(self.part_of[maker], value)

    def _output(self, key: Key, value: Value) -> None:
        outputs = self.parts[key].outputs
        is_sum = self.flow.kind(value) == SETTLE
        if not is_sum and value not in outputs:
            outputs.append(value)

    def _give(self, stage: int, value: Value) -> None:
        """A result that is an argument, or fixed, comes from a task of its own."""
        needed = list(behind(self.flow, [value]))
        key = stage, OPT, self._ready(needed, stage)
        part = self.parts.setdefault(key, StagePart(key))
        for one in needed:
            self._input(part, one)
        if value not in part.outputs:
            part.outputs.append(value)
