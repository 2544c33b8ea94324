"""What goes wrong in a simulated run of training, drawn from its seed.

Half of the faults happen at some moment, half of them behind a message or a line of the
ledger of some kind: so states that hardly ever last are hit as often as the others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from helpers.simulation.network import FOREVER
from helpers.simulation.virtual_processes import Process

if TYPE_CHECKING:
    from helpers.simulation.training import Simulation

FAULT_SECONDS = 6.0
"""Faults happen until then, or a bit later."""
FAULTS = ("kill", "kill", "others", "cut", "freeze", "vanish", "shepherd", "newcomer")
KINDS = (
    *("hello", "welcome", "restore", "ready", "lacking", "round_start", "computed"),
    *("prepared", "commit", "group_failed", "validated", "learn", "learned"),
    *("joined line", "round line", "lease line", "late line", "returned line"),
    *("commit line", "checkpoint line", "rewind line"),
)
"""Of messages, and of lines of the ledger: these are the shepherd's own."""
Fault = Callable[[Process | None], None]


@dataclass
class Trap:
    """A fault that waits for a message."""

    kind: str
    left: int
    """Messages of that kind that pass unharmed."""
    fault: Fault


class Faults:
    """Of one run."""

    def __init__(self, run: "Simulation", draw: random.Random) -> None:
        self._run, self._draw = run, draw
        self._world, self._network = run.world, run.network
        self._traps: list[Trap] = []

    def plan(self, faults: int, aimed: Sequence[tuple[str, str]] = ()) -> None:
        """Draw so many; besides, some behind messages of a kind that is given."""
        draw = self._draw
        for _ in range(faults):
            fault = draw.choice(FAULTS)
            if draw.random() < 0.5:
                at = draw.uniform(0.05, FAULT_SECONDS)
                act = self._fault(fault)
                self._world.after(at, lambda act=act: act(self._anybody()))
            else:
                self._trap(draw.choice(KINDS), fault, unharmed=7)
        for kind, fault in aimed:
            self._trap(kind, fault, unharmed=2)
        self._network.overheard = self._overheard
        self._world.after(FAULT_SECONDS, self._no_more)

    def _fault(self, name: str) -> Fault:
        return getattr(self, f"_{name}")

    def _trap(self, kind: str, fault: str, unharmed: float) -> None:
        """So many messages pass before it, in the mean."""
        left = int(self._draw.expovariate(1 / unharmed))
        self._traps.append(Trap(kind, left, self._fault(fault)))

    def _overheard(self, kind: str, worker: Process) -> None:
        for trap in self._traps:
            if trap.kind != kind:
                continue
            trap.left -= 1
            if trap.left < 0:
                self._traps.remove(trap)
                self._run.note(f"a fault behind {kind} of {worker.name}")
                pause = self._world.random.choice([0.0, 0.0, 0.0, 0.03, 0.1, 0.3])
                if pause:
                    self._world.after(pause, partial(trap.fault, worker))
                else:
                    trap.fault(worker)  # before whoever says it goes on
                return

    def _no_more(self) -> None:
        self._traps.clear()
        for process in [*self._run.alive.values(), self._run.process]:
            if process is not None:
                process.points = None

    def _living(self) -> list[Process]:
        now = self._world.now
        return [
            p for p in self._run.alive.values() if p.alive and p.frozen_until <= now
        ]

    def _anybody(self) -> Process | None:
        living = self._living()
        return self._world.random.choice(living) if living else None

    def _kill(self, worker: Process | None) -> None:
        """It is killed at one of the next points that it passes."""
        if worker is not None:
            worker.points = self._world.random.choice([0, 0, 1, 2, 3, 5, 8, 13, 30])

    def _others(self, worker: Process | None) -> None:
        """Only one is left."""
        for process in self._living():
            if process is not worker:
                self._world.after(self._world.random.uniform(0, 0.2), process.kill)

    def _shepherd(self, _: Process | None) -> None:
        self._kill(self._run.process)

    def _freeze(self, process: Process | None) -> None:
        """A worker, or the shepherd, does nothing for a while."""
        if process is None or not process.alive:
            return
        seconds = self._world.random.choice([0.3, 1.0, 2.5, 6.0])
        self._run.note(f"{process.name} is frozen for {seconds} s")
        until = self._world.now + seconds
        process.frozen_until = max(process.frozen_until, until)

    def _vanish(self, worker: Process | None) -> None:
        """A machine without power: nobody is told anything."""
        if worker in self._living() and worker is not None:
            self._run.note(f"{worker.name} has vanished")
            worker.frozen_until = FOREVER
            self._world.after(self._draw.uniform(0.5, 3.0), self._run.start_worker)

    def _cut(self, worker: Process | None) -> None:
        """A worker's connection to the shepherd breaks."""
        for wire in self._network.wires:
            if wire.open and wire.worker is worker:
                self._run.note(f"the connection of {wire.worker.name} breaks")
                wire.cut()

    def _newcomer(self, _: Process | None) -> None:
        self._run.start_worker()
