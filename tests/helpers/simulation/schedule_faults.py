"""What goes wrong in a drawn schedule of a run, and what an operator does."""

from random import Random
from typing import TYPE_CHECKING

from helpers.simulation.scheduled_connections import Wire
from helpers.simulation.scheduled_workers import Node

from pcp.training.coordinator.events import Ordered
from pcp.training.wire.operator_messages import (
    Order,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule

FAULT_SECONDS = 2.5
"""Faults happen until then, or a bit later."""
SPOILT = 0.05
"""The share of runs in which a worker makes parts that are not finite."""
HANGS_VALIDATING = 0.1
"""The share in which one hangs as soon as it evaluates held-out batches."""


def plan(schedule: "Schedule") -> None:
    """Draw what happens, and when."""
    draw = schedule.random
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4))):
        fault = draw.choice(FAULTS)
        at = 0.1 + FAULT_SECONDS * draw.random()
        schedule.after(at, lambda fault=fault: fault(schedule))
    if draw.random() < 0.1:
        operate(schedule)
    own = Random(schedule.seed)  # which draws nothing from the others' numbers
    if own.random() < SPOILT:
        schedule.after(FAULT_SECONDS * own.random(), lambda: spoil(schedule, own))
    if own.random() < HANGS_VALIDATING:
        at = FAULT_SECONDS * own.random()
        schedule.after(at, lambda: hang_validating(schedule, own))


def _living(schedule: "Schedule") -> Node | None:
    living = [node for node in schedule.nodes.values() if node.alive]
    return schedule.random.choice(living) if living else None


def kill(schedule: "Schedule") -> None:
    """A worker dies; it, or another one, comes anew."""
    draw, node = schedule.random, _living(schedule)
    if node is not None:
        node.die()
        again = node.name if draw.random() < 0.5 else None
        pause = 0.1 + 1.5 * draw.random()
        schedule.after(pause, lambda: schedule.start_worker(again))


def cut(schedule: "Schedule") -> None:
    """A worker's connection breaks."""
    node = _living(schedule)
    if node is not None and node.wire is not None:
        schedule.note("cut", node.name)
        node.wire.cut()


def lose(schedule: "Schedule") -> None:
    """One message of a worker, or for it, is sent and never read."""
    if node := _living(schedule):
        way, later = schedule.random.randrange(2), schedule.random.choice((0, 0, 1, 2))
        node.losing = (way, later)


def freeze(schedule: "Schedule") -> None:
    """A worker does nothing for a while."""
    if node := _living(schedule):
        _freeze(node, schedule.now + schedule.random.choice((0.5, 2.0, 4.0)))


def _freeze(node: Node, until: float) -> None:
    # What waits for the end of a freeze stays behind what came before it.
    node.frozen_until = max(node.frozen_until, until)


def hang(schedule: "Schedule") -> None:
    """A worker's own thread does nothing any more, and nothing else shows it.

    Not in its first round, nor while it takes a state: for those it has ten minutes.
    """
    node, slow = _living(schedule), ("restoring", "step")
    known = node is not None and node.held is not None and node.held[0] and node.steps
    if node is not None and (known or node.at[0] not in slow):
        schedule.note("hangs", node.name, node.at)
        node.hung = True


def hang_inside(schedule: "Schedule") -> None:
    """A worker hangs as soon as it is where others wait for it next."""
    if node := _living(schedule):
        node.hangs_in = schedule.random.choice(("forming", "forming", "exchange"))


def hang_validating(schedule: "Schedule", draw: Random) -> None:
    """A worker hangs where it evaluates held-out batches, if it soon does."""
    if living := [node for node in schedule.nodes.values() if node.alive]:
        node = draw.choice(living)
        node.hangs_in = "validating"
        schedule.after(FAULT_SECONDS, lambda: setattr(node, "hangs_in", None))


def freeze_all(schedule: "Schedule") -> None:
    """All workers do nothing for so long that the run goes on without their state."""
    for node in schedule.nodes.values():
        _freeze(node, schedule.now + 8.0)
    schedule.start_worker()


def kill_shepherd(schedule: "Schedule") -> None:
    """The shepherd dies between two of the next effects."""
    schedule.points = schedule.random.choice((0, 1, 2, 3, 5, 8, 13, 21))


def stall_shepherd(schedule: "Schedule") -> None:
    """The shepherd does nothing for a while."""
    schedule.frozen_until = schedule.now + schedule.random.choice((0.5, 1.0, 3.0))


def spoil(schedule: "Schedule", draw: Random) -> None:
    """Two parts that a worker makes are not finite, and it is quarantined."""
    if living := [node for node in schedule.nodes.values() if node.alive]:
        draw.choice(living).spoils = 2


def newcomer(schedule: "Schedule") -> None:
    """One worker more."""
    schedule.start_worker()


FAULTS = (
    *(kill, kill, cut, lose, lose, freeze, hang, hang_inside),
    *(kill_shepherd, kill_shepherd, stall_shepherd, newcomer, freeze_all),
)


def operate(schedule: "Schedule") -> None:
    """Pause the run and let it go on, with other steps; drain a worker."""
    draw = schedule.random
    at, pause = draw.random() * FAULT_SECONDS, 0.1 + draw.random()
    given = [
        (at, Order(key="k", action="pause")),
        (at + pause, Order(key="k", action="resume")),
        (at + pause, Order(key="k", action="steps", steps=3)),
        (at, Order(key="k", action="drain", worker=1)),
    ]
    # What is given while there is no shepherd is given again.
    again = Order(key="k", action="resume")
    given += [(FAULT_SECONDS + late, again) for late in (1.5, 4, 9)]
    for when, order in given:
        told = Ordered(Wire(schedule, Node(schedule, "nobody", "")), order)
        schedule.after(when, lambda told=told: schedule.tell(told))
