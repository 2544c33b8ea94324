"""The shell around the scheduler: clock, engine thread, and the answers' queues.

The scheduler lives in the event loop's thread. The engine has a thread of its own, and
computes one tick at a time there; its result comes back as an event. A `TickDue`
follows the events of a moment, so requests that come together begin together.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from pcp.errors import PcpError
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
    RunTick,
    SendToken,
    Submitted,
    TickDue,
    Ticked,
)
from pcp.serving.gateway.answer import Answer, Ask, Ended, Inbox
from pcp.serving.gateway.metrics import Metrics
from pcp.serving.gateway.refused import Refused
from pcp.serving.interface import Chunk, Engine, Prepared, Step, Tick
from pcp.serving.scheduler import Limits, Scheduler
from pcp.serving.tokens.tokenizer import Tokenizer

_TRIES = 4
"""Failures in a row, without a tick between them, after which answers are given up."""
_AGAIN = 0.5
"""Seconds between two attempts to make an engine ready again."""
P = TypeVar("P", Chunk, Step)


class _Swap:
    """Other weights that are to be served."""

    def __init__(self, done: "asyncio.Future[float]") -> None:
        self.done = done
        self.prepared: Prepared | None = None

    def take(self) -> Prepared | None:
        """Give them away, to the engine."""
        prepared, self.prepared = self.prepared, None
        return prepared


class Driver:
    """One engine and its requests. Of the event loop's thread, but for `log`.

    `make` loads the engine, in the engine's thread. `options` are those of `Limits`
    that the engine does not say itself.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        tokenizer: Tokenizer,
        metrics: Metrics,
        *,
        log: Callable[[str], None],
        options: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.metrics = tokenizer, metrics
        self.engine: Engine | None = None
        self.scheduler: Scheduler | None = None
        self.failure: BaseException | None = None
        """Why the engine could not be loaded."""
        self.loaded = asyncio.Event()
        """The engine is there, or there is a `failure`."""
        self._make, self._log, self._options = make, log, options or {}
        self._answers: dict[int, Answer] = {}
        self._numbers = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        """That the timer is for."""
        self._due = False
        self._closing = False
        self._closed: asyncio.Future[None] | None = None
        self._began = self._lost_at = 0.0
        self._failures = 0
        self._ticking = False
        self._swap: _Swap | None = None

    # From outside.

    @property
    def ready(self) -> bool:
        """Whether a request that comes now would be computed."""
        return self.scheduler is not None and self.scheduler.ready

    def number(self) -> int:
        """The number of a new request."""
        self._numbers += 1
        return self._numbers

    def start(self) -> None:
        """Load the engine."""
        self._loop = asyncio.get_running_loop()
        self._away(self._make, self._on_loaded)

    def submit(self, ask: Ask, inbox: Inbox) -> None:
        """Ask; `Refused` at once where nobody will answer."""
        if self.scheduler is None:
            why = str(self.failure) if self.failure else "the model is being loaded"
            raise Refused(503, "not_ready", why, 5.0)
        number = ask.request.number
        now = time.monotonic()
        self._answers[number] = Answer(ask, self.tokenizer, inbox, now)
        self._refusal: RefuseRequest | None = None
        self._do(Submitted(ask.request))
        refusal = self._refusal
        if refusal is not None:
            del self._answers[number]
            self.metrics.refused(refusal.code)
            raise Refused(
                refusal.status, refusal.code, refusal.why, refusal.retry_after
            )

    def cancel(self, number: int, reason: Reason = "cancelled") -> bool:
        """The rest of an answer is not needed; returns whether there was one."""
        there = number in self._answers
        if there:
            self._do(Cancelled(number, reason))
        return there

    async def swap(self, folder: str) -> float:
        """Serve other weights of the model; for how many seconds nothing was computed.

        They are read while the old ones are served. Answers under way go on with the
        new ones, behind their last token. `ConfigError` names what does not fit, and
        `Refused` says that another swap is under way.
        """
        if self._swap is not None:
            raise Refused(409, "busy", "other weights are being loaded already", 5.0)
        if self.engine is None:
            raise Refused(503, "not_ready", "the model is being loaded", 5.0)
        swap = self._swap = _Swap(self._loop.create_future())
        try:
            swap.prepared = await asyncio.to_thread(self.engine.prepare, folder)
            if self._closing:
                raise Refused(503, "draining", "the server is about to end")
            if not self._ticking and self.ready:
                self._lose()
            return await swap.done
        finally:
            if swap.prepared is not None:
                swap.prepared.close()
            self._swap = None

    def drain(self) -> None:
        """Serve who is there, and nobody else."""
        if self.scheduler is not None:
            self._do(Draining())

    async def close(self) -> None:
        """End all answers, release the engine. A second call waits for the first."""
        if self._closed is None:
            self._closed = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        self._closing = True
        if self._swap is not None and not self._swap.done.done():
            why = "the server is about to end"
            self._swap.done.set_exception(Refused(503, "draining", why))
        for number in list(self._answers):
            self.cancel(number, "error")
        if self._timer is not None:
            self._timer.cancel()
        if self.engine is not None:
            await self._loop.run_in_executor(self._thread, self.engine.close)
        self._thread.shutdown(wait=True)

    # Events.

    def _do(self, event: Event) -> None:
        assert self.scheduler is not None
        stopped = []
        for effect in self.scheduler.step(event, time.monotonic()):
            stopped += self._carry_out(effect)
        for number in stopped:
            self._do(Cancelled(number, "stop"))
        if not isinstance(event, TickDue | Ticked):
            self._wake()

    def _wake(self) -> None:
        """A `TickDue` behind everything that comes in this turn of the loop."""
        if not self._due and not self._closing:
            self._due = True
            self._loop.call_soon(self._on_due)

    def _on_due(self) -> None:
        self._due = False
        if self._closing or self.scheduler is None:
            return
        self._do(TickDue())
        deadline = self.scheduler.deadline()
        if deadline == self._deadline:
            return
        self._deadline = deadline
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            wait = max(deadline - time.monotonic(), 0.0)
            self._timer = self._loop.call_later(wait, self._on_deadline)

    def _on_deadline(self) -> None:
        """A deadline may have passed; a clock that is early is asked again."""
        self._deadline = None
        self._wake()

    # Effects.

    def _carry_out(self, effect: Effect) -> list[int]:
        """Do it; the requests that a stop string ends."""
        match effect:
            case RunTick(tick):
                self._run(tick)
            case Recover():
                wait = _AGAIN if self._failures > 1 else 0.0
                self._loop.call_later(wait, self._recover)
            case SendToken(number, _, sampled):
                answer = self._answers[number]
                self.metrics.token(answer, time.monotonic())
                if answer.push(sampled):
                    return [number]
            case EndRequest():
                self._end(effect)
            case RefuseRequest():
                self._refusal = effect
        return []

    def _run(self, tick: Tick) -> None:
        assert self.engine is not None
        masked = Tick(
            tuple(self._masked(c) if c.last else c for c in tick.chunks),
            tuple(map(self._masked, tick.steps)),
        )
        self._began, self._ticking = time.monotonic(), True
        self.metrics.tick(tick)
        self._away(lambda: self._engine().tick(masked), self._on_ticked)

    def _masked(self, piece: P) -> P:
        """With the tokens that the answer's form allows."""
        answer = self._answers.get(piece.request)
        if answer is None or answer.ask.constraint is None:
            return piece
        return replace(piece, mask=answer.ask.constraint.mask())

    def _end(self, end: EndRequest) -> None:
        answer = self._answers.pop(end.request)
        tokens = end.tokens - answer.dropped
        reason = "stop" if answer.stopped and end.reason == "length" else end.reason
        ended = Ended(reason, end.prompt, tokens, end.reused, end.why)
        answer.end(ended)
        self.metrics.ended(answer, ended, time.monotonic())

    # The engine's thread.

    def _engine(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def _away(
        self, work: Callable[[], Any], done: Callable[["Future[Any]"], None]
    ) -> None:
        """Do work in the engine's thread, and what follows in ours."""

        def back(future: "Future[Any]") -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._back, future, done)

        self._thread.submit(work).add_done_callback(back)

    def _back(
        self, future: "Future[Any]", done: Callable[["Future[Any]"], None]
    ) -> None:
        if not self._closing:
            done(future)

    def _on_loaded(self, future: "Future[Engine]") -> None:
        self.failure = future.exception()
        if self.failure is None:
            self.engine = engine = future.result()
            sizes = Limits(engine.slots, engine.context, engine.chunk)
            self.scheduler = Scheduler(replace(sizes, **self._options))
        self.loaded.set()

    def _on_ticked(self, future: "Future[Any]") -> None:
        self.metrics.computed(time.monotonic() - self._began)
        self._ticking = False
        error = future.exception()
        if error is None:
            self._failures = 0
            self._do(Ticked(future.result()))
            if self._swap is not None and self._swap.prepared is not None:
                self._lose()
            else:
                self._on_due()  # the engine does not wait until the tokens are sent
            return
        # Whatever it is, nobody shall wait for ever: what there is begins anew.
        self._log(f"the engine was lost: {_said(error)}")
        self._failures += 1
        self._lose()

    def _lose(self) -> None:
        """What the slots hold is worth nothing, or will not be."""
        self._lost_at = time.monotonic()
        self._do(Lost())

    def _recover(self) -> None:
        if self._closing:
            return
        if self._swap is None or (prepared := self._swap.take()) is None:
            self._away(lambda: self._engine().recover(), self._on_recovered)
        else:
            self._away(lambda: self._engine().swap(prepared), self._on_swapped)

    def _on_swapped(self, future: "Future[None]") -> None:
        self._on_recovered(future)
        if self._swap is None or self._swap.done.done():
            return
        if (error := future.exception()) is not None:
            self._swap.done.set_exception(error)
        else:
            self._swap.done.set_result(time.monotonic() - self._lost_at)

    def _on_recovered(self, future: "Future[None]") -> None:
        error = future.exception()
        if error is not None:
            self._failures += 1
            self._log(f"the engine could not be made ready again: {_said(error)}")
        if self._failures >= _TRIES:
            self._failures = 1
            self._do(NotRecovered(_said(error) if error else "it fails at every tick"))
        elif error is not None:
            self._loop.call_later(_AGAIN, self._recover)
        else:
            took = time.monotonic() - self._lost_at
            self.metrics.recovered(took)
            self._log(f"the engine is ready again after {took:.2f} s")
            self._do(Recovered())
            if self._swap is not None and self._swap.prepared is not None:
                self._lose()


def _said(error: BaseException) -> str:
    """An error of pcp says enough; of another one the type is told too."""
    text = str(error)
    return text if isinstance(error, PcpError) else f"{type(error).__name__}: {text}"
