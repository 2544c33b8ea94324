"""The processor time and the memory of a coordinator, while it is simulated.

    meter = CoordinatorMeter(islands)
    meter.step(event, now)          as `Islands.step`, with its processor time
    meter.bytes                     the most that it was seen to hold

What it holds are the objects that are reached from the state machines and from the
messages that a step gives to send; workers, the network and the program's manifest are
not its own. Objects are counted whenever it has more to send than ever, and when
`weigh` is called: each time takes a part of a second for thousands of workers.
"""

import gc
import sys
import time
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pcp.manifest import Manifest
from pcp.training.coordinator.effects import Effect
from pcp.training.coordinator.events import Event
from pcp.training.coordinator.islands import Islands
from pcp.training.coordinator.training_run import TrainingRun

_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, Manifest)


class CoordinatorMeter:
    """A run's state machines, with what they cost."""

    def __init__(self, islands: Islands, peer: type) -> None:
        """`peer` is the class of the connections, which are not the coordinator's."""
        self._islands, self._others = islands, (peer, *_NOT_ITS_OWN)
        self.seconds = 0.0
        """Processor seconds of all steps so far."""
        self.bytes = 0
        """The most bytes that it was seen to hold."""
        self._most = 0

    @property
    def run(self) -> TrainingRun:
        """The run."""
        return self._islands.run

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self.run.rounds is not None and self.run.rounds.attempt is not None

    def step(self, event: Event, now: float) -> Sequence[Effect]:
        """The effects of an event."""
        held = self.run.rounds and self.run.rounds.attempt
        began = time.thread_time()
        effects = self._islands.step(event, now)
        self.seconds += time.thread_time() - began
        if len(effects) > self._most:
            self._most = len(effects)
            self.weigh(effects, held)
        return effects

    def weigh(self, *more: object) -> None:
        """Count what it holds, and `more` that is reached from elsewhere."""
        self.bytes = max(self.bytes, held_bytes([self._islands, *more], self._others))


def held_bytes(roots: Iterable[Any], without: tuple[type, ...]) -> int:
    """The bytes of all objects that are reached from these, each counted once.

    Objects of the types `without` are not counted, nor what is reached through them.
    """
    seen, found, total = set[int](), list(roots), 0
    while found:
        each = found.pop()
        if id(each) in seen or isinstance(each, without):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        found += gc.get_referents(each)
    return total
