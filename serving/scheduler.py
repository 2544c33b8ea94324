"""Which request has which slot, and what the engine computes next. Pure.

    effects = scheduler.step(event, now)

No socket, file, thread or clock is touched here: what happens comes in as events, what
is to be done goes out as effects (`pcp.serving.events`), and `now`, in seconds, is an
argument. The same events at the same times give the same effects.

**A tick** is one pass of the model: a step for every request that generates, and beside
them chunks of prompts, oldest request first, with at most as many tokens together as
the engine's largest chunk. `TickDue` begins one, behind all events of a moment, when
the engine has none; `Ticked` brings its results. What the slot of a cancelled request
computed meanwhile is dropped.

**The truth** about a request is its tokens: those of its prompt and those that were
sent. What of them is in a slot is only a cache. So there is one way to begin, to go on
after the engine was `Lost`, and to come back after another key had its turn: chunks of
all tokens that the cache does not have. The token behind the last of them is the next
one that is sent; none is sent twice, none is missing. A free slot keeps its tokens, and
a request with the same beginning goes on from there.

**Fairness** is by tokens (virtual token counters, Sheng et al., arXiv:2401.00588): a
key is charged for what is computed for it, and a free slot goes to the waiting key that
was charged least. A key that was away begins with the least charge of those present, so
it can save nothing up. With `quantum`, a key of more slots makes way for one that was
charged so many tokens less.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Any

from pcp.serving.events import (
    Cancelled,
    Draining,
    Effect,
    EndRequest,
    Event,
    Lost,
    NotRecovered,
    Reason,
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
from pcp.serving.interface import Chunk, Sampled, Step, Tick

_FIRST_GUESS = 1.0
"""Seconds that a request takes, as long as none has ended."""
_NEWEST = 0.1
"""Weight of the newest request in the mean of the seconds that requests take."""
_AWAY = 5.0
"""Seconds after which one may ask whether the engine is back."""
_LONGEST_WAIT = 60.0
"""Seconds; nobody is asked to come back later than that."""


@dataclass(frozen=True)
class Limits:
    """What an engine can hold, and whom its server lets wait.

    At most `queue` requests wait; at most `per_key` of one key are there at all (0: any
    number). A request makes way for a key that was charged `quantum` tokens less than
    its own (0: never). Without `reuse` a slot's cache is of one request alone.
    """

    slots: int
    context: int
    chunk: int
    queue: int = 128
    per_key: int = 0
    quantum: int = 2048
    reuse: bool = True


class _Job:
    """A request that is there: its tokens so far, and where it is computed."""

    def __init__(self, request: Request, order: int, now: float) -> None:
        self.request, self.order = request, order
        self.tokens = list(request.prompt)
        self.slot: _Slot | None = None
        self.admitted: float | None = None
        self.submitted = now
        self.reused = 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


class _Slot:
    """A row of the engine's cache, and the tokens that are in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cached: list[int] = []
        self.fed: int | None = None
        """The request whose tokens came last."""
        self.job: _Job | None = None
        self.freed = 0
        """When it became free, in ticks."""

    def put(self, start: int, tokens: Sequence[int], request: int) -> None:
        """Tokens of a request are in the cache from a position on, and none behind."""
        self.cached[start:] = tokens
        self.fed = request

    def clear(self) -> None:
        """The engine forgot it."""
        self.cached.clear()
        self.fed = None


class Scheduler:
    """The requests of one engine. Not thread-safe; never blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ready = True
        """Whether the engine can compute."""
        self.broken = ""
        """Why it could not be made ready again, as long as it could not."""
        self.draining = False
        self.ticks = 0
        """Ticks that were begun."""
        self.preempted = 0
        """How often a request lost its slot to another key's."""
        self.recoveries = 0
        """How often the engine was made ready again."""
        self._slots = [_Slot(number) for number in range(limits.slots)]
        self._jobs: dict[int, _Job] = {}
        self._waiting: dict[str, deque[_Job]] = {}
        self._charged: Counter[str] = Counter()
        self._running: tuple[Tick, list[_Job]] | None = None
        self._seconds = 0.0
        self._order = 0
        self._now = 0.0
        self._effects: list[Effect] = []
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Submitted: lambda event: self._on_submitted(event.request),
            Cancelled: self._on_cancelled,
            TickDue: lambda event: self._on_due(),
            Ticked: lambda event: self._on_ticked(event.sampled),
            Lost: lambda event: self._on_lost(),
            Recovered: lambda event: self._on_recovered(),
            NotRecovered: self._on_not_recovered,
            Draining: lambda event: self._on_draining(),
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """The effects of an event, in their order; `now` never goes back."""
        self._now = now
        self._handlers[type(event)](event)
        effects, self._effects = self._effects, []
        return effects

    # Questions.

    @property
    def queued(self) -> int:
        """How many requests wait for a slot."""
        return sum(map(len, self._waiting.values()))

    @property
    def active(self) -> int:
        """How many slots are taken."""
        return sum(slot.job is not None for slot in self._slots)

    @property
    def cached(self) -> int:
        """Positions of the cache that hold a token of a request with a slot."""
        return sum(len(slot.cached) for slot in self._slots if slot.job)

    @property
    def idle(self) -> bool:
        """Whether no request is there."""
        return not self._jobs

    def deadline(self) -> float | None:
        """When the next request has waited too long."""
        known = [job.request.deadline for job in self._jobs.values()]
        return min((at for at in known if at is not None), default=None)

    # Events.

    def _on_submitted(self, request: Request) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._effects.append(refusal)
            return
        self._order += 1
        job = _Job(request, self._order, self._now)
        self._welcome(request.key)
        self._jobs[request.number] = job
        self._waiting.setdefault(request.key, deque()).append(job)

    def _on_cancelled(self, event: Cancelled) -> None:
        if event.request in self._jobs:
            self._end(self._jobs[event.request], event.reason)

    def _on_due(self) -> None:
        for job in list(self._jobs.values()):
            deadline = job.request.deadline
            if deadline is not None and deadline <= self._now:
                self._end(job, "timeout", "the deadline of the request has passed")
        if not self.ready or self._running is not None:
            return
        self._admit()
        while self._preempt():
            self._admit()
        self._begin()

    def _on_ticked(self, sampled: Sequence[Sampled]) -> None:
        assert self._running is not None, "a result of no tick"
        (tick, jobs), self._running = self._running, None
        for chunk in tick.chunks:
            self._slots[chunk.slot].put(chunk.start, chunk.tokens, chunk.request)
        found = [list(results) for _, results in groupby(sampled, lambda s: s.slot)]
        of_steps = found[len(jobs) - len(tick.steps) :]
        for step, results in zip(tick.steps, of_steps, strict=True):
            tokens = (step.token, *(result.token for result in results[:-1]))
            self._slots[step.slot].put(step.position, tokens, step.request)
        for job, results in zip(jobs, found, strict=True):
            for result in results:
                if self._jobs.get(job.request.number) is job:
                    self._take(job, result)

    def _on_lost(self) -> None:
        self.ready, self._running = False, None
        for slot in self._slots:
            slot.clear()
        self._effects.append(Recover())

    def _on_recovered(self) -> None:
        self.ready, self.broken = True, ""
        self.recoveries += 1

    def _on_not_recovered(self, event: NotRecovered) -> None:
        self.broken = event.why
        for job in list(self._jobs.values()):
            self._end(job, "error", event.why)
        self._effects.append(Recover())

    def _on_draining(self) -> None:
        self.draining = True

    # Who is let in.

    def _refusal(self, request: Request) -> RefuseRequest | None:
        """Why a request is not served, if it is not."""
        number, limits, length = request.number, self.limits, len(request.prompt)
        if not request.prompt or request.limit < 1:
            why = "a request has at least one token, and asks for at least one"
            return RefuseRequest(number, 400, "empty_request", why)
        if length >= limits.context:
            why = f"the prompt has {length} tokens; with at least one more it has to "
            why += f"fit the context of {limits.context}: shorten it"
            return RefuseRequest(number, 400, "context_length_exceeded", why)
        if self.draining:
            why = "the server is about to end: ask another one"
            return RefuseRequest(number, 503, "draining", why, _LONGEST_WAIT)
        if self.broken:
            why = f"the engine is away: {self.broken}"
            return RefuseRequest(number, 503, "engine_away", why, _AWAY)
        wait = self._wait()
        here = sum(job.request.key == request.key for job in self._jobs.values())
        if limits.per_key and here >= limits.per_key:
            why = f"{here} requests of this key are there, as many as it may have"
            return RefuseRequest(number, 429, "too_many_requests", why, wait)
        free = 0 if not self.ready else limits.slots - self.active
        if self.queued >= limits.queue + free:
            why = f"{self.queued} requests wait already, as many as may"
            return RefuseRequest(number, 429, "queue_full", why, wait)
        return None

    def _wait(self) -> float:
        """About how long the queue takes, in whole seconds."""
        mean = self._seconds or _FIRST_GUESS
        ahead = (self.queued + 1) / self.limits.slots
        return float(min(max(ceil(ahead * mean), 1), _LONGEST_WAIT))

    def _welcome(self, key: str) -> None:
        """A key that was away is charged no less than those that are here."""
        here = {job.request.key for job in self._jobs.values()}
        if here and key not in here:
            least = min(self._charged[other] for other in here)
            self._charged[key] = max(self._charged[key], least)

    # Who has a slot.

    def _next(self) -> _Job | None:
        """The oldest waiting request of the key that was charged least."""
        heads = (jobs[0] for jobs in self._waiting.values() if jobs)
        charged = self._charged
        return min(heads, key=lambda j: (charged[j.request.key], j.order), default=None)

    def _admit(self) -> None:
        """Give free slots to waiting requests."""
        while (job := self._next()) is not None and (slot := self._best(job)):
            self._waiting[job.request.key].popleft()
            self._put(job, slot)

    def _best(self, job: _Job) -> _Slot | None:
        """The free slot with most of a request's tokens, or the longest free."""
        free = (slot for slot in self._slots if slot.job is None)
        return max(free, key=lambda s: (self._common(s, job), -s.freed), default=None)

    def _put(self, job: _Job, slot: _Slot) -> None:
        kept = self._common(slot, job)
        del slot.cached[kept:]
        slot.job, job.slot = job, slot
        if job.admitted is None:
            job.admitted, job.reused = self._now, kept
            self._charged[job.request.key] += len(job.request.prompt) - kept

    def _common(self, slot: _Slot, job: _Job) -> int:
        """How many of a request's tokens, without its last, a slot has already."""
        if not self.limits.reuse:
            return 0
        most = min(len(slot.cached), len(job.tokens) - 1)
        pairs = zip(slot.cached, job.tokens, strict=False)
        differ = (i for i, (a, b) in enumerate(pairs) if a != b or i == most)
        return next(differ, most)

    def _preempt(self) -> bool:
        """Take a slot from a key that was charged far more than one that waits.

        The request with the fewest tokens goes: it is computed again soonest.
        """
        waiting, quantum = self._next(), self.limits.quantum
        if waiting is None or not quantum:
            return False
        here = [slot.job for slot in self._slots if slot.job is not None]
        held = Counter(job.request.key for job in here)
        poor = waiting.request.key
        rich = [
            job
            for job in here
            if self._charged[job.request.key] - self._charged[poor] > quantum
            and held[job.request.key] > held[poor]
        ]
        if not rich:
            return False
        victim = min(rich, key=lambda job: len(job.tokens))
        self._free(victim)
        self._waiting.setdefault(victim.request.key, deque()).appendleft(victim)
        self.preempted += 1
        return True

    def _free(self, job: _Job) -> None:
        if job.slot is not None:
            job.slot.job, job.slot.freed, job.slot = None, self.ticks, None

    # What is computed.

    def _begin(self) -> None:
        """Begin a tick, if there is anything to compute."""
        taken = [(slot, slot.job) for slot in self._slots if slot.job is not None]
        taken.sort(key=lambda pair: pair[1].order)
        stepping = [pair for pair in taken if self._steps(*pair)]
        steps = tuple(self._step(slot, job) for slot, job in stepping)
        filling = [pair for pair in taken if not self._steps(*pair)]
        chunks = tuple(self._chunks(filling))
        if not chunks and not steps:
            return
        ending = {chunk.request for chunk in chunks if chunk.last}
        jobs = [job for _, job in filling if job.request.number in ending]
        tick = Tick(chunks, steps)
        self._running = tick, jobs + [job for _, job in stepping]
        self.ticks += 1
        self._effects.append(RunTick(tick))

    @staticmethod
    def _steps(slot: _Slot, job: _Job) -> bool:
        """Whether the cache has all tokens of a request, by itself, but its newest."""
        own = slot.fed == job.request.number
        return own and job.generated > 0 and len(slot.cached) == len(job.tokens) - 1

    @staticmethod
    def _step(slot: _Slot, job: _Job) -> Step:
        request, last = job.request, job.tokens[-1]
        where = slot.number, last, len(slot.cached)
        return Step(*where, request.number, request.sampling)

    def _chunks(self, filling: list[tuple[_Slot, _Job]]) -> Iterator[Chunk]:
        """Chunks of the oldest requests, as many tokens as the largest chunk has."""
        room = self.limits.chunk
        for slot, job in filling:
            start, request = len(slot.cached), job.request
            tokens = tuple(job.tokens[start : start + room])
            if not tokens:
                return
            room -= len(tokens)
            yield Chunk(
                slot.number,
                tokens,
                start,
                start + len(tokens) == len(job.tokens),
                request.number,
                request.sampling,
                prompt=len(request.prompt),
                adopt=start > 0 and slot.fed != request.number,
            )

    def _take(self, job: _Job, sampled: Sampled) -> None:
        """Send a token, and end the request behind its last one.

        There is none below 0, by which an engine says that its numbers are none.
        """
        request = job.request
        self._charged[request.key] += 1
        if sampled.token < 0:
            self._slots[sampled.slot].clear()
            self._end(job, "error", "the model's numbers are not finite")
            return
        job.tokens.append(sampled.token)
        if sampled.token in request.stop:
            self._end(job, "stop")
            return
        index = job.generated - 1
        self._effects.append(SendToken(request.number, index, sampled))
        full = len(job.tokens) >= self.limits.context
        if full or job.generated >= request.limit:
            self._end(job, "length")

    def _end(self, job: _Job, reason: Reason, why: str = "") -> None:
        request = job.request
        self._free(job)
        if (queue := self._waiting.get(request.key)) and job in queue:
            queue.remove(job)
        if not queue:
            self._waiting.pop(request.key, None)
        del self._jobs[request.number]
        if job.admitted is not None:
            took = self._now - job.admitted
            self._seconds += (took - self._seconds) * (_NEWEST if self._seconds else 1)
        prompt = len(request.prompt)
        self._effects.append(
            EndRequest(request.number, reason, job.generated, prompt, job.reused, why)
        )
