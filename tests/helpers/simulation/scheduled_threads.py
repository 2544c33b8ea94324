"""The thread of a drawn worker that computes: where it is, and whether it hangs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from helpers.simulation.run_checks import Violation

from pcp.training.wire.message import Message
from pcp.training.wire.messages import (
    AwaitedRanks,
    Computed,
    Heartbeat,
    InnerExchangeReport,
    RoundStart,
    Whereabouts,
)
from pcp.training.worker.whereabouts import Call

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_inner_exchanges import Partial


class OwnThread(ABC):
    """What a worker's heartbeats say of it."""

    def __init__(self, schedule: "Schedule", name: str) -> None:
        self._schedule, self.name = schedule, name
        self.island: str | None = None
        self.alive, self.frozen_until = True, 0.0
        self._doing = 0
        """Counts what it begins: what was begun before is given up."""
        self.hung = False
        """Whether it does nothing any more; the one that beats and dials goes on."""
        self.hangs_in: Call | None = None
        self.at: tuple[Call, float] = ("waiting", schedule.now)
        self.steps = 0
        self.spoils = 0
        """So many of its next parts of rounds are not finite."""
        self.spoilt: int | None = None
        """The last round of which it said so."""
        self.losing: tuple[int, int] | None = None
        """A way, and how many more messages that way are read until one is lost."""

    def enters(self, call: Call) -> None:
        """It begins this; or hangs in it, if that was to happen."""
        if not self.hung:
            self.at = (call, self._schedule.now)
        if call == self.hangs_in:
            self._schedule.note("hangs inside", call)
            self.hung = True

    @abstractmethod
    def die(self) -> None:
        """Its process ends."""

    @abstractmethod
    def awaits(self) -> AwaitedRanks | None:
        """Whom it waits for; None: it is in no call with others."""

    def loses(self, way: int, message: Message) -> bool:
        """Whether this is the message that a connection breaks at."""
        if self.losing is None or isinstance(message, Heartbeat):
            return False
        at, left = self.losing
        if at == way:
            self.losing = (at, left - 1) if left else None
        return at == way and not left

    def quarantined(self, member: str) -> None:
        """It ends, and another process comes in its place."""
        if member not in self._schedule.spoilt:
            raise Violation(f"{member} is quarantined, and was right")
        if self.alive:
            self.die()
            self._schedule.start_worker()

    def spoils_step(self, order: RoundStart, partial: "Partial") -> None:
        """A step before an exchange may be the one that is not finite; in odd runs it
        is the last one, behind all exchanges."""
        at, odd = divmod(self._schedule.seed, 2)
        done, legs = len(partial.exchanged), partial.legs
        if not odd and done == at % legs and self.spoils_part(order):
            partial.bad = partial.bad or 1 + done

    def spoils_part(self, order: RoundStart) -> bool:
        """Whether what it makes is not finite: at most once a round.

        A second time the run would pause, where nobody else is a member.
        """
        if not self.spoils or order.round == self.spoilt:
            return False
        self.spoils, self.spoilt = self.spoils - 1, order.round
        self._schedule.spoilt.add(self.island or self.name)
        self._schedule.note("is not finite", order.round)
        return True

    def part(self, order: RoundStart, partial: "Partial | None") -> Computed:
        """What its inner steps made; `moved` says if it is finite.

        Behind the last exchange there is no loss of another's bad numbers.
        """
        said = Computed(round=order.round, epoch=order.epoch, loss=1.0, moved=1.0)
        bad = partial.bad if partial else None
        if bad is None and not self.spoils_part(order):
            return said
        update: dict[str, Any] = {"moved": math.nan}
        if partial is None or (bad or 1) <= partial.legs:
            update |= {"loss": math.nan, "nonfinite_step": bad or 1}
        return said.model_copy(update=update)

    def said(self) -> Whereabouts:
        """Where it is."""
        call, began = self.at
        since = self._schedule.now - began
        return Whereabouts(call=call, steps=self.steps, since=since)

    def meets(self, order: RoundStart, at: Whereabouts) -> InnerExchangeReport:
        """How far it is with an order of a round without exchanges inside."""
        forming = at.call == "forming"
        return InnerExchangeReport(
            round=order.round,
            epoch=order.epoch,
            entered=not forming,
            waits=at.since if forming else None,
            **self.company(at),
        )

    def company(self, at: Whereabouts) -> dict[str, Any]:
        """Whom it waits for, or how long it is alone where others are."""
        awaits = self.awaits()
        alone = awaits is None and at.with_others
        return {"awaits": awaits, "alone": at.since if alone else None}

    @property
    def hangs_with_others(self) -> bool:
        """Whether it hangs where it is with others; the process lives."""
        return self.hung and self.alive and self.said().with_others

    @property
    def frozen(self) -> bool:
        """Whether it does nothing for now."""
        return self._schedule.now < self.frozen_until

    def after(
        self,
        seconds: float,
        act: Callable[[], object],
        *,
        link: bool = False,
        doing: int | None = None,
    ) -> None:
        """Do it later, if it lives then; `link`: in the thread that beats and dials.

        `doing` is what it then does still, or this is given up.
        """
        self._schedule.after(seconds, partial(self._due, act, link, doing))

    def _due(self, act: Callable[[], object], link: bool, doing: int | None) -> None:
        if not self.alive or (self.hung and not link):
            return
        if self.frozen:
            pause = self.frozen_until - self._schedule.now
            self._schedule.after(pause, partial(self._due, act, link, doing))
        elif doing is None or doing == self._doing:
            act()

    def begin(self, seconds: float, act: Callable[[], object]) -> None:
        """Do it later, if nothing else was begun by then."""
        self._doing += 1
        self.after(seconds, act, doing=self._doing)

    def still(self) -> Callable[[], bool]:
        """Asks whether it does what it does now."""
        doing = self._doing
        return lambda: doing == self._doing
