"""A run's figures for Prometheus, by the package `prometheus-client`.

Counters count from the start of this shepherd; gauges show the newest round.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pcp.errors import MissingPackage, install
from pcp.training.observe.metrics import Quiet
from pcp.training.storage.round_record import MemberRound, Round

# Name -> (what it is, the field of a `Round`).
_GAUGES = {
    "pcp_round": ("the newest committed round", "round"),
    "pcp_loss": ("mean training loss, nats a token", "loss"),
    "pcp_round_workers": ("workers in the newest round", "workers"),
    "pcp_tokens_per_second": ("of all workers together", "tokens_per_second"),
    "pcp_run_tokens": ("tokens of the run's committed rounds", "tokens_total"),
    "pcp_group_epoch": ("rises with each change of the group", "epoch"),
}
_COUNTERS = {
    "pcp_rounds": ("committed rounds", None),
    "pcp_tokens": ("tokens trained on", "tokens"),
    "pcp_sent_bytes": ("bytes sent by all workers", "bytes_sent"),
    "pcp_nonfinite_losses": ("workers' rounds with a NaN or infinite loss", "broken"),
}
# Name -> (what it is, the field of a `MemberRound`); labelled by worker.
_BY_WORKER = {
    "pcp_worker_loss": ("mean loss over its inner steps", "loss"),
    "pcp_worker_compute_seconds": ("of the newest round", "compute_seconds"),
    "pcp_worker_data_wait_seconds": ("of the newest round", "data_wait_seconds"),
    "pcp_worker_exchange_seconds": ("of the newest round", "exchange_seconds"),
    "pcp_worker_processor_seconds": ("of all threads", "processor_seconds"),
    "pcp_worker_resident_bytes": ("memory it holds", "resident_bytes"),
    "pcp_worker_sent_bytes": ("in the newest round", "bytes_sent"),
    "pcp_worker_gradient_norm": ("of the newest round's last step", "gradient_norm"),
}
# Those that are no field: name -> (what it is, its label or None).
_OTHERS = {
    "pcp_validation_loss": ("nats a token", None),
    "pcp_round_seconds": ("of a round, a histogram", None),
    "pcp_workers": ("connected workers by state", "state"),
}
_ROUND_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


def described() -> dict[str, str]:
    """What each metric of a run is, by the name that Prometheus stores it under."""
    counters = {f"{name}_total": told for name, told in _COUNTERS.items()}
    tables = (_GAUGES, counters, _BY_WORKER, _OTHERS)
    return {name: what for each in tables for name, (what, _) in each.items()}


class Prometheus(Quiet):
    """Holds a registry that `WebPage` serves under `/metrics`."""

    def __init__(self) -> None:
        try:
            self._client: Any = import_module("prometheus_client")
        except ImportError as error:
            raise MissingPackage(
                f"/metrics needs prometheus-client: {install('metrics')}"
            ) from error
        made = self._client
        self._registry = made.CollectorRegistry()
        rest = {"registry": self._registry}
        self._gauges = {n: made.Gauge(n, d, **rest) for n, (d, _) in _GAUGES.items()}
        self._counters = {
            n: made.Counter(n, d, **rest) for n, (d, _) in _COUNTERS.items()
        }
        self._by_worker = {
            n: made.Gauge(n, d, ["worker"], **rest) for n, (d, _) in _BY_WORKER.items()
        }
        other = {n: (n, what) for n, (what, _) in _OTHERS.items()}
        self._validation = made.Gauge(*other["pcp_validation_loss"], **rest)
        self._seconds = made.Histogram(
            *other["pcp_round_seconds"], buckets=_ROUND_SECONDS, **rest
        )
        self._states = made.Gauge(*other["pcp_workers"], ["state"], **rest)

    def text(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        content = self._client.generate_latest(self._registry)
        return content, self._client.CONTENT_TYPE_LATEST

    def round(self, record: Round) -> None:
        """Show the newest round."""
        for name, (_, field) in _GAUGES.items():
            self._gauges[name].set(getattr(record, field))
        for name, (_, field) in _COUNTERS.items():
            self._counters[name].inc(getattr(record, field) if field else 1)
        self._seconds.observe(record.seconds)
        for gauge in self._by_worker.values():
            gauge.clear()  # a worker that left is no longer shown
        for member in record.members:
            self._member(member)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Show the newest held-out loss."""
        self._validation.set(loss)

    def status(self, values: Mapping[str, Any]) -> None:
        """Count the workers."""
        self._states.clear()
        for worker in values["workers"]:
            self._states.labels(worker["state"]).inc()

    def _member(self, member: MemberRound) -> None:
        for name, (_, field) in _BY_WORKER.items():
            value = getattr(member, field)
            if value is None:  # not known of this worker
                continue
            self._by_worker[name].labels(str(member.worker)).set(value)
