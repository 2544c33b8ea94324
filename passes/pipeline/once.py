"""The stages of a function that runs once and takes no data: @init, @apply.

Every tensor belongs to the stage of its parameter. What a stage can compute from
what it holds, it computes itself, several of them the same if need be. An op that
reads from several stages runs where the fewest bytes have to be sent for it: not what
is made of a scalar (the factor of a clipped norm, spread over a gradient), but that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcp.dialect.bindings import ir
from pcp.dialect.roles import LIKE_PARAMETERS, OF_PARAMETERS, parameter_of
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.core.functions import (
    NAME,
    ROLE,
    argument_attributes,
    result_attributes,
    string,
)
from pcp.passes.core.rewriting import is_pure
from pcp.passes.pipeline.flow import FIXED, TAIL, Flow
from pcp.passes.pipeline.stages import Homes, Stages
from pcp.passes.sharding.rounding import rounds

Value = ir.Value

#: How many ops back it is looked for something smaller to send.
DEPTH = 8


def assign_once(
    flow: Flow, count: int, homes: Homes, *, unlike: bool = False
) -> Stages:
    """Stages for what has to run on one of them; all other ops are made again.

    `homes` are the stages of the parameters by name; `flow.kinds` is rewritten. Where
    stages are `unlike`, which round differently, what several are given is made once.
    """
    stages = Stages(flow, count)
    everywhere = list(range(count))
    for argument, said in zip(
        flow.arguments, argument_attributes(flow.function), strict=True
    ):
        stages.homes[argument] = _home(said, homes, everywhere)
    for k, said in enumerate(result_attributes(flow.function)):
        stages.delivered[k] = _home(said, homes, everywhere)
    once = _Once(stages, frozenset(everywhere), unlike)
    once.spread()
    once.deliver()
    return stages


def _home(
    said: dict[str, ir.Attribute], homes: Homes, everywhere: Sequence[int]
) -> list[int]:
    """Where a tensor belongs: a parameter wherever it is read, what goes with it
    (its gradient, its state `m.w`) on the lowest of these stages."""
    name, role = string(said, NAME) or "", string(said, ROLE)
    if role in OF_PARAMETERS:
        name = parameter_of(name)
    if role not in LIKE_PARAMETERS or name not in homes:
        return list(everywhere)
    found = homes[name]
    return [min(found)] if role in ("grad", *OF_PARAMETERS) else list(found)


#: What the devices of each stage that reads it exchange among themselves.
AGAIN = ("pcp.reshard", "pcp.broadcast")


@dataclass
class _Once:
    """The stages on which each value can be had without sending it."""

    stages: Stages
    everywhere: frozenset[int]
    unlike: bool = False
    at: dict[Value, frozenset[int]] = field(default_factory=dict)

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def spread(self) -> None:
        """Every op on all stages that hold what it reads, or on one."""
        for argument, homes in self.stages.homes.items():
            self.at[argument] = frozenset(homes)
        for number, op in enumerate(self.flow.ops):
            self.flow.kinds[number] = FIXED
            near = self._near(number) or frozenset([self._gather(number)])
            if op.name not in AGAIN and not is_pure(op):
                near = frozenset([min(near)])
                self._pin(number, min(near))
            self.at.update((result, near) for result in op.results)

    def _near(self, number: int) -> frozenset[int]:
        """The stages that have all that an op reads."""
        near = self.everywhere
        for value in self.flow.reads[number]:
            near &= self.at[value]
        return near

    def _gather(self, number: int) -> int:
        """The stage that needs the least for an op; it gets what it lacks."""
        read = self.flow.reads[number]
        stage = min(
            sorted(self.everywhere),
            key=lambda s: sum(self._price(v, s) for v in read),
        )
        for value in read:
            self._bring(value, stage)
        return stage

    def _price(self, value: Value, stage: int, depth: int = DEPTH) -> int:
        """Bytes to send so that a stage has a value."""
        if stage in self.at[value]:
            return 0
        number = self.flow.makers.get(value)
        own = size_bytes(value)
        if number is None or self.flow.kinds[number] != FIXED or not depth:
            return own
        parts = (self._price(v, stage, depth - 1) for v in self.flow.reads[number])
        return min(own, sum(parts))

    def _bring(self, value: Value, stage: int, depth: int = DEPTH) -> None:
        """Let a stage have a value: sent, or made there of what is sent."""
        if stage in self.at[value]:
            return
        number = self.flow.makers.get(value)
        if self._price(value, stage, depth) == size_bytes(value):
            self._send(value)
        else:
            assert number is not None, "an argument costs what it is large"
            for source in self.flow.reads[number]:
                self._bring(source, stage, depth - 1)
        self.at[value] |= {stage}

    def _send(self, value: Value) -> None:
        """The value is made on one stage, which another reads it from."""
        number = self.flow.makers.get(value)
        if number is not None and self.flow.kinds[number] == FIXED:
            self._pin(number, min(self.at[value]))

    def _pin(self, number: int, stage: int) -> None:
        """The op runs on this stage alone."""
        self.flow.kinds[number] = TAIL
        self.stages.of[number] = stage

    def deliver(self) -> None:
        """Results that are wanted on stages that cannot make them are sent."""
        for k, value in enumerate(self.flow.results):
            stages = self.stages.delivered[k]
            number = self.flow.makers.get(value)
            several = self.unlike and len(stages) > 1
            if several and number in self._rounded and self.flow.kinds[number] == FIXED:
                near = self.at[value] & frozenset(stages) or self.at[value]
                self._pin(number, min(near))
            for stage in stages:
                self._bring(value, stage)

    @cached_property
    def _rounded(self) -> set[int]:
        """The ops that something rounds in, or in front of."""
        found: set[int] = set()
        for number, op in enumerate(self.flow.ops):
            makers = {self.flow.makers.get(v) for v in self.flow.reads[number]}
            if rounds(op) or makers & found:
                found.add(number)
        return found
