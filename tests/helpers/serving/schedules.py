"""Drawn schedules of requests, cancellations and deaths, on a virtual clock.

    python -m helpers.serving.schedules FIRST COUNT

Each checks that a request ends once, with the tokens of an undisturbed one as far as it
came, that no slot leaks, and that none starves: what remains once nobody comes any more
is served within as many ticks as its tokens take.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from helpers.serving.closed_form import ClosedForm, answer

from pcp.serving.events import (
    Cancelled,
    Effect,
    EndRequest,
    Event,
    Lost,
    NotRecovered,
    Recover,
    Recovered,
    RefuseRequest,
    Request,
    RunTick,
    SendToken,
    Submitted,
    TickDue,
    Ticked,
)
from pcp.serving.interface import EngineLost, Sampling, Tick
from pcp.serving.scheduler import Limits, Scheduler


class Wrong(AssertionError):
    """A schedule whose outcome must not be."""


def check(held: bool, what: str) -> None:
    """Say what is wrong, unless it holds."""
    if not held:
        raise Wrong(what)


@dataclass
class Story:
    """What a request was sent, and how it ended."""

    request: Request
    sent: list[int] = field(default_factory=list)
    end: EndRequest | RefuseRequest | None = None
    cancelled: bool = False


class Schedule:
    """One schedule of a seed. `scheduler` may be a class that is wrong on purpose."""

    def __init__(self, seed: int, scheduler: type[Scheduler] = Scheduler) -> None:
        self.random = random = Random(seed)
        self.engine = ClosedForm(
            slots=random.randint(1, 4),
            context=random.choice((6, 12, 24)),
            chunk=random.randint(1, 6),
            vocabulary=random.choice((3, 11)),
        )
        engine = self.engine
        self.limits = Limits(
            engine.slots,
            engine.context,
            engine.chunk,
            queue=random.choice((0, 2, 16)),
            per_key=random.choice((0, 0, 3)),
            quantum=random.choice((0, 1, 4, 16)),
            reuse=random.random() < 0.7,
        )
        self.scheduler = scheduler(self.limits)
        self.stories: dict[int, Story] = {}
        self.now = 0.0
        self.tick: Tick | None = None
        self.recovering = False
        self.deaths = random.choice((0, 0, 1, 3))
        self.failures = random.choice((0, 0, 0, 1))

    def run(self) -> "Schedule":
        """The whole schedule; `Wrong` for the first thing that must not be."""
        todo = self.random.randint(1, 9)
        left = 40 * todo + 400
        while todo or not self.scheduler.idle or self.tick or self.recovering:
            check(left > 0, f"after all that time {self._open()} have not ended")
            left -= 1
            self.now += self.random.choice((0.0, 0.1, 1.0))
            if todo and self.random.random() < 0.4:
                self._submit(len(self.stories))
                todo -= 1
            elif self.random.random() < 0.05:
                self._cancel()
            self._advance()
        self._check_end()
        return self

    # What happens.

    def _submit(self, number: int) -> None:
        random, engine = self.random, self.engine
        again = [s.request.prompt for s in self.stories.values()]
        length = random.randint(1, engine.context)
        prompt = tuple(random.randrange(engine.vocabulary) for _ in range(length))
        if again and random.random() < 0.4:  # the beginning of an earlier one
            old = random.choice(again)
            prompt = (old[: random.randint(1, len(old))] + prompt)[: engine.context]
        stop = random.sample(range(engine.vocabulary), random.choice((0, 1)))
        hurried = random.random() < 0.2
        request = Request(
            number,
            prompt,
            random.randint(1, 8),
            Sampling(seed=random.choice((0, 5))),
            frozenset(stop),
            key=random.choice("aab"),
            deadline=self.now + random.choice((2, 9)) if hurried else None,
        )
        self.stories[number] = Story(request)
        self._do(Submitted(request))

    def _cancel(self) -> None:
        if self.stories:
            story = self.random.choice([*self.stories.values()])
            story.cancelled = story.cancelled or story.end is None
            self._do(Cancelled(story.request.number))

    def _advance(self) -> None:
        """The engine answers, or is given work."""
        random = self.random
        if self.recovering and random.random() < 0.5:
            self.recovering = False
            if self.failures and random.random() < 0.5:
                self.failures -= 1
                self._do(NotRecovered("no spare"))
            else:
                self.engine.recover()
                self._do(Recovered())
        elif self.tick and random.random() < 0.7:
            self._finish(self.tick)
        self._do(TickDue())

    def _finish(self, tick: Tick) -> None:
        self.tick = None
        if self.deaths and self.random.random() < 0.15:
            self.deaths -= 1
            self.engine.lose = True
        try:
            sampled = self.engine.tick(tick)
        except EngineLost:
            self._do(Lost())
        else:
            self._do(Ticked(sampled))

    def _do(self, event: Event) -> None:
        for effect in self.scheduler.step(event, self.now):
            self._carry_out(effect)
        check(self.scheduler.active <= self.engine.slots, "more active than slots")
        check(self.scheduler.queued <= self.limits.queue + self.engine.slots, "queue")

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RunTick(tick):
                check(self.tick is None and not self.recovering, "two ticks at once")
                tokens = sum(len(chunk.tokens) for chunk in tick.chunks)
                check(tokens <= self.engine.chunk, "too many tokens of prompts")
                self.tick = tick
            case Recover():
                self.recovering = True
            case SendToken(number, index, sampled):
                story = self._unended(number)
                check(index == len(story.sent), f"token {index} of request {number}")
                story.sent.append(sampled.token)
            case EndRequest(request=number) | RefuseRequest(request=number):
                self._unended(number).end = effect

    def _unended(self, number: int) -> Story:
        story = self.stories[number]
        check(story.end is None, f"request {number} goes on behind its end")
        return story

    # What must hold.

    def _open(self) -> list[int]:
        return [number for number, s in self.stories.items() if s.end is None]

    def _check_end(self) -> None:
        scheduler = self.scheduler
        check(not self._open(), f"{self._open()} never ended")
        check(scheduler.active == 0 and scheduler.queued == 0, "a slot or place leaks")
        check(scheduler.deadline() is None, "a deadline is left")
        for story in self.stories.values():
            self._check(story)

    def _check(self, story: Story) -> None:
        request, end = story.request, story.end
        if isinstance(end, RefuseRequest):
            check(not story.sent, "tokens of a refused request")
            check(end.status in (400, 429, 503), "status")
            fits = len(request.prompt) < self.engine.context
            check((end.status == 400) == (not fits), f"{end} of {request}")
            check(end.status == 400 or end.retry_after is not None, "when to come back")
            return
        assert end is not None
        wanted, reason = answer(
            request.prompt,
            request.limit,
            request.stop,
            sampling=request.sampling,
            vocabulary=self.engine.vocabulary,
            context=self.engine.context,
        )
        check(story.sent == wanted[: len(story.sent)], f"other tokens: {story}")
        if end.reason in ("stop", "length"):
            check(
                (story.sent, end.reason) == (wanted, reason), f"{story}, not {wanted}"
            )
            check(end.tokens == len(wanted) + (reason == "stop"), "counted tokens")
        elif end.reason == "cancelled":
            check(story.cancelled, "cancelled by nobody")
        elif end.reason == "timeout":
            check(request.deadline is not None, "a timeout without a deadline")
            check(request.deadline is None or request.deadline <= self.now, "too early")
        else:
            check(end.why == "no spare", "an error of nothing")


def first_violation(
    seeds: Iterable[int], scheduler: type[Scheduler] = Scheduler
) -> str | None:
    """What the first schedule that goes wrong says."""
    for seed in seeds:
        try:
            Schedule(seed, scheduler).run()
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    sys.exit(first_violation(range(first, first + count)))
