"""A gateway's figures for Prometheus, by the package `prometheus-client`.

Without it `/metrics` is an error, and nothing is counted but what `summary` shows.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from pcp.errors import MissingPackage
from pcp.serving.gateway.answer import Answer, Ended
from pcp.serving.interface import Tick
from pcp.serving.scheduler import Scheduler
from pcp.training.observe.registry import Registry

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
# Name -> (what it is, its label).
_COUNTERS = {
    "pcp_serve_requests": ("requests by how they ended", ["outcome"]),
    "pcp_serve_prompt_tokens": ("tokens of prompts that were computed", []),
    "pcp_serve_generated_tokens": ("tokens that were sent", []),
    "pcp_serve_reused_tokens": ("tokens of prompts that the cache had", []),
    "pcp_serve_ticks": ("passes of the model", []),
    "pcp_serve_steps": ("requests in those passes", []),
}
_GAUGES = {
    "pcp_serve_queued": "requests that wait for a slot",
    "pcp_serve_active": "slots that are taken",
    "pcp_serve_cached_tokens": "positions of the cache that active requests use",
    "pcp_serve_preempted": "requests that made way for another key",
    "pcp_serve_recoveries": "times the engine was made ready again",
    "pcp_serve_ready": "1 while every engine can compute",
}
_HISTOGRAMS = {
    "pcp_serve_first_token_seconds": ("from the request to its first token", _SECONDS),
    "pcp_serve_between_tokens_seconds": ("between two tokens", _BETWEEN),
    "pcp_serve_request_seconds": ("from the request to its end", _SECONDS),
    "pcp_serve_tick_seconds": ("a pass of the model", _BETWEEN),
    "pcp_serve_recovery_seconds": ("from a loss to readiness", _SECONDS),
}
_WINDOW = 100


class Metrics:
    """Counts what a gateway does."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        """Ended requests by reason, refused ones by code."""
        self.generated = 0
        self.latencies: deque[float] = deque(maxlen=_WINDOW)
        """Seconds of the newest requests."""
        self.rates: deque[float] = deque(maxlen=_WINDOW)
        """Tokens a second of the newest requests."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=10)
        self._registry: Registry | None = None
        try:
            self._registry = made = Registry("serve")
        except MissingPackage as error:
            self._missing = error
            return
        for name, (about, labels) in _COUNTERS.items():
            made.counter(name, about, labels)
        for name, about in _GAUGES.items():
            made.gauge(name, about)
        for name, (about, buckets) in _HISTOGRAMS.items():
            made.histogram(name, about, buckets)

    def text(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        if self._registry is None:
            raise self._missing
        return self._registry.text()

    def tick(self, tick: Tick) -> None:
        """A pass of the model begins."""
        prompts = sum(len(chunk.tokens) for chunk in tick.chunks)
        self._count("pcp_serve_ticks", 1)
        self._count("pcp_serve_steps", len(tick.steps))
        self._count("pcp_serve_prompt_tokens", prompts)

    def computed(self, seconds: float) -> None:
        """It took so long."""
        self._observe("pcp_serve_tick_seconds", seconds)

    def token(self, answer: Answer, now: float) -> None:
        """An answer has one more token."""
        name = "between_tokens" if answer.tokens else "first_token"
        self._observe(f"pcp_serve_{name}_seconds", now - answer.newest)
        answer.newest = now
        self.generated += 1
        self._count("pcp_serve_generated_tokens", 1)

    def ended(self, answer: Answer, ended: Ended, now: float) -> None:
        """An answer is complete."""
        seconds = now - answer.asked
        self._outcome(ended.reason)
        self._count("pcp_serve_reused_tokens", ended.reused)
        self._observe("pcp_serve_request_seconds", seconds)
        rate = ended.tokens / max(seconds, 1e-9)
        self.latencies.append(seconds)
        self.rates.append(rate)
        self.recent.append(
            {
                "request_id": str(answer.number),
                "input_tokens": ended.prompt,
                "output_tokens": ended.tokens,
                "total_ms": seconds * 1e3,
                "tokens_per_second": rate,
                "finish_reason": ended.reason,
            }
        )

    def refused(self, code: str) -> None:
        """A request was not served."""
        self._outcome(code)

    def recovered(self, seconds: float) -> None:
        """The engine was away for so long."""
        self._observe("pcp_serve_recovery_seconds", seconds)

    def load(self, schedulers: Sequence[Scheduler]) -> None:
        """How full the engines are, all of them together."""
        if self._registry is None:
            return
        values = {
            "queued": sum(each.queued for each in schedulers),
            "active": sum(each.active for each in schedulers),
            "cached_tokens": sum(each.cached for each in schedulers),
            "preempted": sum(each.preempted for each in schedulers),
            "recoveries": sum(each.recoveries for each in schedulers),
            "ready": bool(schedulers) and all(each.ready for each in schedulers),
        }
        for name, value in values.items():
            self._registry[f"pcp_serve_{name}"].set(value)

    def _outcome(self, what: str) -> None:
        self.outcomes[what] += 1
        if self._registry is not None:
            self._registry["pcp_serve_requests"].labels(what).inc()

    def _count(self, name: str, number: int) -> None:
        if self._registry is not None:
            self._registry[name].inc(number)

    def _observe(self, name: str, seconds: float) -> None:
        if self._registry is not None:
            self._registry[name].observe(seconds)
