"""The scheduler: who has a slot, what is computed, what is sent, on a virtual clock."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from helpers.serving.closed_form import ClosedForm, answer
from helpers.serving.schedules import Schedule, first_violation

from pcp.serving.events import (
    Cancelled,
    Draining,
    Effect,
    EndRequest,
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
from pcp.serving.interface import Sampled, Sampling, Tick
from pcp.serving.scheduler import Limits, Scheduler, _Job, _Slot


class Desk:
    """A scheduler and its engine, a second a tick."""

    def __init__(self, engine: ClosedForm | None = None, **limits: int) -> None:
        self.engine = engine or ClosedForm()
        e = self.engine
        made = Limits(e.slots, e.context, e.chunk)
        self.scheduler = Scheduler(replace(made, **limits))
        self.now = 0.0
        self.done: list[Effect] = []
        self.ticks: list[Tick] = []

    def submit(
        self, number: int, prompt: Iterable[int], limit: int = 4, **rest
    ) -> None:
        request = Request(number, tuple(prompt), limit, **rest)
        self.done += self.scheduler.step(Submitted(request), self.now)

    def turn(self, turns: int = 1) -> None:
        """Ticks, each computed at once."""
        for _ in range(turns):
            effects = self.scheduler.step(TickDue(), self.now)
            self.done += effects
            self.now += 1
            for effect in effects:
                if isinstance(effect, RunTick):
                    self.ticks.append(effect.tick)
                    sampled = self.engine.tick(effect.tick)
                    self.done += self.scheduler.step(Ticked(sampled), self.now)

    def sent(self, number: int) -> list[int]:
        tokens = [e for e in self.done if isinstance(e, SendToken)]
        return [e.sampled.token for e in tokens if e.request == number]

    def end(self, number: int) -> EndRequest | RefuseRequest | None:
        ends = (e for e in self.done if isinstance(e, EndRequest | RefuseRequest))
        return next((e for e in ends if e.request == number), None)

    def wanted(self, prompt: Iterable[int], limit: int, seed: int = 0) -> list[int]:
        e, sampling = self.engine, Sampling(seed=seed)
        rest = {"vocabulary": e.vocabulary, "context": e.context}
        made, _ = answer([*prompt], limit, frozenset(), sampling=sampling, **rest)
        return made


def test_drawn_schedules() -> None:
    assert first_violation(range(800)) is None


def _thousand(first: int) -> str | None:
    return first_violation(range(first, first + 1000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_drawn_schedules() -> None:
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        found = pool.imap_unordered(_thousand, range(0, 100_000, 1000))
        assert not [wrong for wrong in found if wrong]


def test_the_schedules_have_everything_in_them() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        run = Schedule(seed).run()
        ends = [story.end for story in run.stories.values()]
        for end in ends:
            seen[str(getattr(end, "reason", getattr(end, "status", "")))] += 1
            seen["reused"] += bool(getattr(end, "reused", 0))
        seen["preempted"] += run.scheduler.preempted
        seen["recovered"] += run.scheduler.recoveries
    everything = "stop length cancelled timeout error 400 429 503"
    everything += " reused preempted recovered"
    few = {what: seen[what] for what in everything.split() if seen[what] < 3}
    assert not few


# Wrong schedulers, which the schedules must notice.


class SendsTwice(Scheduler):
    """After a loss the newest token is computed, and sent, once more."""

    def _on_lost(self) -> None:
        for job in self._jobs.values():
            if job.generated:
                job.tokens.pop()
        super()._on_lost()


class ForgetsNoCache(Scheduler):
    """After a loss it goes on as if the slots were not empty."""

    def _on_lost(self) -> None:
        kept = [[*slot.cached] for slot in self._slots]
        super()._on_lost()
        for slot, cached in zip(self._slots, kept, strict=True):
            slot.cached = cached


class LeaksSlots(Scheduler):
    """A slot whose request was cancelled stays taken."""

    def _free(self, job: _Job) -> None:
        if job.generated != 1:
            super()._free(job)


class TakesAnything(Scheduler):
    """What a cancelled request's slot computed goes to whoever is there."""

    def _take(self, job: _Job, sampled: Sampled) -> None:
        heirs = [s.job for s in self._slots if s.job and s.number == sampled.slot]
        super()._take(heirs[0] if heirs else job, Sampled(0, sampled.token // 2, 0.0))


class IgnoresResults(Scheduler):
    """A result counts although its request has ended."""

    def _on_ticked(self, sampled) -> None:
        running = self._running
        super()._on_ticked(sampled)
        for job, result in zip(running[1] if running else (), sampled, strict=True):
            if job.request.number not in self._jobs and not job.generated:
                self._effects.append(SendToken(job.request.number, 0, result))


class OffByOne(Scheduler):
    """A cache's last token is taken for computed when it is not."""

    def _common(self, slot: _Slot, job: _Job) -> int:
        return min(super()._common(slot, job) + 1, len(slot.cached))


class Starves(Scheduler):
    """A key that was charged once waits for ever."""

    def _next(self) -> _Job | None:
        job = super()._next()
        return None if job and self._charged[job.request.key] > 20 else job


class ForgetsWhatItSent(Scheduler):
    """A preempted request begins anew."""

    def _preempt(self) -> bool:
        before = [slot.job for slot in self._slots]
        done = super()._preempt()
        for job in before:
            if job is not None and job.slot is None:
                job.tokens = [*job.request.prompt]
        return done


class WaitsForEver(Scheduler):
    """A request whose deadline passed in the queue is not told."""

    def _end(self, job: _Job, reason, why: str = "") -> None:
        if reason == "timeout" and job.slot is None:
            self._waiting[job.request.key].remove(job)
            del self._jobs[job.request.number]
        else:
            super()._end(job, reason, why)


@pytest.mark.parametrize(
    "mutant",
    [
        SendsTwice,
        ForgetsNoCache,
        LeaksSlots,
        TakesAnything,
        IgnoresResults,
        OffByOne,
        Starves,
        ForgetsWhatItSent,
        WaitsForEver,
    ],
)
def test_a_scheduler_that_is_wrong_is_found(mutant: type[Scheduler]) -> None:
    found = first_violation(range(400), mutant)
    assert found is not None


# One thing each.


def test_requests_beside_each_other_get_what_they_get_alone() -> None:
    desk = Desk()
    prompts = {n: [n + 1] * (3 * n + 1) for n in range(6)}
    for number, prompt in prompts.items():
        desk.submit(number, prompt, sampling=Sampling(seed=number))
        desk.turn(number % 3)
    desk.turn(40)
    for number, prompt in prompts.items():
        assert desk.sent(number) == desk.wanted(prompt, 4, seed=number)
    assert max(len(tick.steps) for tick in desk.ticks) > 1


def test_a_long_prompt_does_not_hold_up_who_generates() -> None:
    desk = Desk(ClosedForm(chunk=4))
    desk.submit(0, [1], limit=20)
    desk.turn()
    desk.submit(1, range(40), limit=2)
    desk.turn(9)
    beside = [tick for tick in desk.ticks if tick.chunks and tick.steps]
    assert len(beside) == 9
    assert len(desk.sent(0)) == 10


def test_the_oldest_prompt_is_first_and_the_chunk_is_shared() -> None:
    desk = Desk(ClosedForm(chunk=8))
    desk.submit(0, range(10))
    desk.submit(1, range(20, 23))
    desk.submit(2, range(30, 33))
    desk.turn(2)
    first, second = desk.ticks
    assert [len(c.tokens) for c in first.chunks] == [8]
    assert [(c.request, len(c.tokens)) for c in second.chunks] == [
        (0, 2),
        (1, 3),
        (2, 3),
    ]
    assert [c.last for c in second.chunks] == [True] * 3


def test_a_queue_has_an_end_and_says_when_to_come_back() -> None:
    desk = Desk(ClosedForm(slots=1), queue=2)
    for number in range(4):
        desk.submit(number, [number], limit=5)
    refused = desk.end(3)
    assert isinstance(refused, RefuseRequest)
    assert (refused.status, refused.code) == (429, "queue_full")
    assert refused.retry_after == 4  # three wait, and it would, a guessed second each
    desk.turn(20)
    desk.submit(4, [4])
    assert desk.end(4) is None


def test_a_key_has_its_limit() -> None:
    desk = Desk(per_key=2)
    for number in range(3):
        desk.submit(number, [1], key="a")
    desk.submit(3, [1], key="b")
    refused = desk.end(2)
    assert isinstance(refused, RefuseRequest)
    assert refused.code == "too_many_requests"
    assert desk.end(3) is None


def test_a_key_of_one_request_does_not_wait_behind_a_key_of_many() -> None:
    desk = Desk(ClosedForm(slots=2), quantum=0)
    for number in range(10):
        desk.submit(number, [number], limit=6, key="many")
    desk.turn(3)
    desk.submit(10, [50], limit=3, key="one")
    desk.turn(12)
    assert desk.end(10) is not None
    done = [n for n in range(10) if desk.end(n)]
    assert len(done) < 5


def test_a_key_with_all_slots_makes_way() -> None:
    desk = Desk(ClosedForm(slots=2), quantum=6, reuse=0)
    for number in range(2):
        desk.submit(number, [number], limit=50, key="many")
    desk.turn(2)
    desk.submit(2, [9], limit=3, key="one")
    desk.turn(9)
    assert desk.end(2) is not None
    assert desk.scheduler.preempted == 1
    desk.turn(70)
    for number in range(2):
        assert desk.sent(number) == desk.wanted([number], 50)


def test_a_deadline_passes_in_the_queue_and_in_a_slot() -> None:
    desk = Desk(ClosedForm(slots=1))
    desk.submit(0, [1], limit=50, deadline=4.0)
    desk.submit(1, [1], limit=50, deadline=2.0)
    assert desk.scheduler.deadline() == 2.0
    desk.turn(6)
    for number, tokens in ((0, 4), (1, 0)):
        end = desk.end(number)
        assert isinstance(end, EndRequest)
        assert (end.reason, end.tokens) == ("timeout", tokens)
    assert desk.scheduler.idle


def test_a_cancelled_request_frees_its_slot_for_the_next_tick() -> None:
    desk = Desk(ClosedForm(slots=1))
    desk.submit(0, [1], limit=50)
    desk.submit(1, [2], limit=2)
    (run,) = desk.scheduler.step(TickDue(), 0.0)
    assert isinstance(run, RunTick)
    desk.done += desk.scheduler.step(Cancelled(0), 0.0)
    desk.done += desk.scheduler.step(Ticked(desk.engine.tick(run.tick)), 0.0)
    desk.turn(3)
    assert desk.sent(0) == []
    assert desk.sent(1) == desk.wanted([2], 2)


def test_a_lost_engine_is_a_pause() -> None:
    desk = Desk(ClosedForm(chunk=4))
    desk.submit(0, range(10), limit=8)
    desk.submit(1, [3], limit=8)
    desk.turn(6)
    before = desk.sent(0)
    assert 0 < len(before) < 8
    desk.scheduler.step(TickDue(), desk.now)
    assert desk.scheduler.step(Lost(), desk.now) == [Recover()]
    assert desk.scheduler.step(TickDue(), desk.now) == []
    desk.engine.recover()
    desk.scheduler.step(Recovered(), desk.now)
    desk.turn(20)
    assert desk.sent(0) == desk.wanted(range(10), 8)
    assert desk.sent(1) == desk.wanted([3], 8)


def test_an_engine_that_does_not_come_back_ends_requests_and_refuses_new_ones() -> None:
    desk = Desk()
    desk.submit(0, [1])
    desk.scheduler.step(TickDue(), 0.0)
    desk.scheduler.step(Lost(), 0.0)
    desk.done += desk.scheduler.step(NotRecovered("no spare"), 0.0)
    assert desk.end(0) == EndRequest(0, "error", 0, 1, why="no spare")
    desk.submit(1, [1])
    refused = desk.end(1)
    assert isinstance(refused, RefuseRequest)
    assert refused.status == 503
    desk.scheduler.step(Recovered(), 0.0)
    desk.submit(2, [1])
    assert desk.end(2) is None


def test_a_conversation_is_not_computed_again() -> None:
    desk = Desk(ClosedForm(slots=2))
    desk.submit(0, range(20), limit=4)
    desk.turn(10)
    before = desk.engine.computed
    longer = [*range(20), *desk.sent(0), 5, 6]
    desk.submit(1, longer, limit=2)
    desk.turn(5)
    assert desk.sent(1) == desk.wanted(longer, 2)
    end = desk.end(1)
    assert isinstance(end, EndRequest)
    assert end.reused == 23
    assert desk.engine.computed - before == len(longer) - 23 + 1


def test_numbers_that_are_none_end_their_request_and_nothing_of_it_is_reused() -> None:
    desk = Desk(ClosedForm(slots=1))
    desk.submit(0, range(10), limit=4)
    (run,) = desk.scheduler.step(TickDue(), 0.0)
    assert isinstance(run, RunTick)
    desk.engine.tick(run.tick)
    desk.scheduler.step(Ticked([]), 0.0)
    (run,) = desk.scheduler.step(TickDue(), 0.0)
    desk.done += desk.scheduler.step(Ticked([Sampled(0, -1, float("nan"))]), 0.0)
    end = desk.end(0)
    assert isinstance(end, EndRequest)
    assert (end.reason, end.tokens) == ("error", 0)
    desk.submit(1, range(10), limit=4)
    desk.turn(8)
    assert desk.sent(1) == desk.wanted(range(10), 4)
    assert desk.ticks[0].chunks[0].start == 0


def test_an_answer_ends_where_the_context_does() -> None:
    desk = Desk(ClosedForm(context=8))
    desk.submit(0, range(6), limit=100)
    desk.submit(1, range(8), limit=1)
    desk.turn(8)
    end = desk.end(0)
    assert isinstance(end, EndRequest)
    assert (end.reason, len(desk.sent(0))) == ("length", 2)
    refused = desk.end(1)
    assert isinstance(refused, RefuseRequest)
    assert refused.code == "context_length_exceeded"


def test_who_is_there_when_the_server_ends_is_served() -> None:
    desk = Desk()
    desk.submit(0, [1])
    desk.scheduler.step(Draining(), 0.0)
    desk.submit(1, [1])
    desk.turn(5)
    assert desk.sent(0) == desk.wanted([1], 4)
    refused = desk.end(1)
    assert isinstance(refused, RefuseRequest)
    assert refused.status == 503
