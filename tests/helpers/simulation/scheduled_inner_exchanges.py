"""Rounds of a drawn schedule in which members exchange between their inner steps.

With exchanges in every step a round begins again in each group; with fragments it goes
on behind the exchanges that are complete, if all members have the same of them. An
exchange of which some members hear, before their group breaks, and others do not is
drawn too: they are not as far as each other then.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.simulation.run_checks import Violation

from pcp.training.wire.messages import (
    InnerExchangeReport,
    RoundStart,
    Whereabouts,
)
from pcp.training_plan import Fragments

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_groups import Group
    from helpers.simulation.scheduled_workers import Node


@dataclass
class Partial:
    """A round that a member is in, as `pcp.training.worker.worker_state` has it."""

    round: int
    lease: Any
    base: str
    """The digest of the state that it began from."""
    legs: int
    """Exchanges in the round."""
    exchanged: tuple[int, ...] = ()
    """The epochs in which the exchanges were complete."""
    bad: int | None = None
    """The first of its steps that is not finite, its own or by an exchange."""
    since: float | None = None
    """When this member came to the exchange that it waits in."""


class InnerExchanges:
    """The exchanges of one group between its members' inner steps."""

    def __init__(self, schedule: "Schedule", group: "Group") -> None:
        self._schedule, self._group = schedule, group
        self._formed_since = schedule.now
        self._waiting: dict[str, tuple[Node, RoundStart]] = {}

    def begin(self, base: str) -> None:
        """All members have one state: they go on, or begin the round."""
        members = self._group.arrived
        resumes = self._resumes(members)
        for node, order in members:
            legs = order.longest
            if isinstance(self._schedule.plan, Fragments):
                legs = self._schedule.plan.count
            partial = node.partial if resumes else None
            if partial is None:
                partial = Partial(order.round, list(order.lease), base, legs)
            partial.since = None
            node.go_on(order, partial)

    def _resumes(self, members: list[tuple["Node", RoundStart]]) -> bool:
        """Whether all members' exchanges of this round are complete to one point."""
        if not isinstance(self._schedule.plan, Fragments):
            return False
        found = {_progress(node, order) for node, order in members}
        if found == {None}:
            return False
        same = found.pop() if len(found) == 1 else None
        self._schedule.resumed.append(-1 if same is None else len(same))
        return same is not None

    @property
    def there(self) -> Collection[str]:
        """The members that wait in the exchange that is next."""
        return self._waiting.keys()

    def waits(self, node: "Node") -> bool:
        """Whether a member waits in one."""
        return node.address in self._waiting

    def enters(self, node: "Node", order: RoundStart) -> None:
        """A member waits in its next exchange; it takes place when all do."""
        if self._group.broken:
            return
        self._waiting[node.address] = (node, order)
        if len(self._waiting) == self._group.size:
            waiting, self._waiting = [*self._waiting.values()], {}
            _spread([node.partial for node, _ in waiting if node.partial])
            for member, own in waiting:
                member.after(
                    0.01 + self._schedule.latency() / 4,
                    lambda member=member, own=own: self._exchanged(member, own),
                )

    def _exchanged(self, node: "Node", order: RoundStart) -> None:
        if node.group is self._group and node.partial is not None:
            node.partial.exchanged += (order.epoch,)
            node.partial.since = None
            node.go_on(order, node.partial)

    def of(self, node: "Node", at: Whereabouts) -> InnerExchangeReport | None:
        """How far a member is, as its heartbeats say it."""
        orders = {member.address: order for member, order in self._group.arrived}
        order = orders.get(node.address)
        if order is None:
            return None
        said = {"round": order.round, "epoch": order.epoch, **node.company(at)}
        now = self._schedule.now
        if len(orders) < self._group.size or node.partial is None:
            return InnerExchangeReport(
                **said, entered=0, waits=now - self._formed_since
            )
        since, done = node.partial.since, len(node.partial.exchanged)
        if since is None:
            return InnerExchangeReport(**said, entered=1 + done)
        return InnerExchangeReport(**said, entered=2 + done, waits=now - since)

    def check(self) -> None:
        """The members of a round have made the same exchanges with each other."""
        found = {n.partial.exchanged for n, _ in self._group.arrived if n.partial}
        if len(found) > 1:
            raise Violation(f"the members of a round exchanged in {sorted(found)}")
        if found and isinstance(self._schedule.plan, Fragments):
            return
        epochs = {order.epoch for _, order in self._group.arrived}
        if any(set(exchanged) - epochs for exchanged in found):
            raise Violation(f"exchanges of an epoch before {epochs} count: {found}")


def _progress(node: "Node", order: RoundStart) -> tuple[int, ...] | None:
    """The exchanges of this round and lease that are complete; None for another."""
    partial = node.partial
    if partial is None or (partial.round, partial.lease) != (
        order.round,
        list(order.lease),
    ):
        return None
    return partial.exchanged


def _spread(met: list[Partial]) -> None:
    """What is not finite of one member is in the next steps of all."""
    if any(partial.bad is not None for partial in met):
        for partial in met:
            partial.bad = partial.bad or 2 + len(partial.exchanged)
