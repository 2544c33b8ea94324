"""The stages of a function that runs once and takes no data: @init, @apply.

Every tensor belongs to the stage of its parameter. What a stage can compute from
what it holds, it computes itself, several of them the same if need be. An op that
reads from several stages runs where most of what it reads is; scalars that come of it
(the factor of a clipped norm) go to whoever reads them, so that what is spread from
them is not sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.passes.functions import (
    NAME,
    ROLE,
    argument_attributes,
    result_attributes,
    string,
)
from pcp.passes.pipeline.flow import FIXED, TAIL, Flow
from pcp.passes.pipeline.stages import Homes, Stages
from pcp.passes.pipeline.work import size_bytes
from pcp.passes.rewriting import is_pure

Value = ir.Value

#: Values of up to so many bytes are sent rather than what is made of them.
SMALL = 64


def assign_once(flow: Flow, count: int, homes: Homes) -> Stages:
    """Stages for what has to run on one of them; all other ops are made again.

    `homes` are the stages of the parameters by name; `flow.kinds` is rewritten.
    """
    stages = Stages(flow, count)
    everywhere = list(range(count))
    for argument, said in zip(
        flow.arguments, argument_attributes(flow.function), strict=True
    ):
        stages.homes[argument] = _home(said, homes, everywhere)
    for k, said in enumerate(result_attributes(flow.function)):
        stages.delivered[k] = _home(said, homes, everywhere)
    once = _Once(stages, frozenset(everywhere))
    once.spread()
    once.deliver()
    return stages


def _home(
    said: dict[str, ir.Attribute], homes: Homes, everywhere: Sequence[int]
) -> list[int]:
    """Where a tensor belongs: a parameter wherever it is read, what goes with it
    (its gradient, its state `m.w`) on the lowest of these stages."""
    name, role = string(said, NAME) or "", string(said, ROLE)
    if role == "state":
        name = name.partition(".")[2]
    found = homes.get(name, list(everywhere)) if role in BELONGS else list(everywhere)
    if role in ("grad", "state") and name in homes:
        return [min(found)]
    return list(found)


BELONGS = ("param", "grad", "state", "anchor")


@dataclass
class _Once:
    """The stages on which each value can be had without sending it."""

    stages: Stages
    everywhere: frozenset[int]
    at: dict[Value, frozenset[int]] = field(default_factory=dict)

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def spread(self) -> None:
        """Every op on all stages that hold what it reads, or on one."""
        for argument, homes in self.stages.homes.items():
            self.at[argument] = frozenset(homes)
        for number, op in enumerate(self.flow.ops):
            near = self.everywhere
            for value in self.flow.reads[number]:
                near &= self.at[value]
            self.flow.kinds[number] = FIXED
            if not near:
                self._join(number)
            elif op.name != "pcp.reshard" and not is_pure(op):
                self._pin(number, min(near))
            else:
                self.at.update((result, near) for result in op.results)

    def _join(self, number: int) -> None:
        """An op that reads from several stages: on the one that holds the most."""
        read = self.flow.reads[number]
        held = {
            stage: sum(size_bytes(v) for v in read if stage in self.at[v])
            for stage in sorted(self.everywhere)
        }
        stage = max(held, key=lambda s: held[s])
        for value in read:
            if stage not in self.at[value]:
                self._send(value)
        self._pin(number, stage)
        results = self.flow.ops[number].results
        if sum(map(size_bytes, results)) <= SMALL:
            self.at.update((result, self.everywhere) for result in results)

    def _pin(self, number: int, stage: int) -> None:
        self.flow.kinds[number] = TAIL
        self.stages.of[number] = stage
        results = self.flow.ops[number].results
        self.at.update((result, frozenset([stage])) for result in results)

    def _send(self, value: Value) -> None:
        """The value is made on one stage, which another reads it from."""
        number = self.flow.makers.get(value)
        if number is not None and self.flow.kinds[number] == FIXED:
            self.flow.kinds[number] = TAIL
            self.stages.of[number] = min(self.at[value])

    def deliver(self) -> None:
        """Results that are wanted on stages that cannot make them are sent."""
        for k, value in enumerate(self.flow.results):
            if not set(self.stages.delivered[k]) <= self.at[value]:
                self._send(value)
