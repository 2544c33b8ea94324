"""A run's figures for Prometheus, by the package `prometheus-client`.

Counters count from the start of this shepherd; gauges show the newest round.
"""

from collections.abc import Mapping
from typing import Any

from pcp.training.observe.metrics import NullObserver
from pcp.training.observe.registry import Registry
from pcp.training.storage.round_record import MemberRound, Round

# Name -> (description, the field of a `Round`).
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
# Name -> (description, the field of a `MemberRound`); labelled by worker.
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
# Metrics that are no field: name -> (description, label or None).
_VALIDATION, _SECONDS = "pcp_validation_loss", "pcp_round_seconds"
_WORKERS = "pcp_workers"
_OTHERS = {
    _VALIDATION: ("nats a token", None),
    _SECONDS: ("of a round, a histogram", None),
    _WORKERS: ("connected workers by state", "state"),
}
_ROUND_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


def described() -> dict[str, str]:
    """The description of each metric of a run, by its name in Prometheus."""
    counters = {f"{name}_total": told for name, told in _COUNTERS.items()}
    tables = (_GAUGES, counters, _BY_WORKER, _OTHERS)
    return {name: what for each in tables for name, (what, _) in each.items()}


class Prometheus(NullObserver):
    """Holds a registry that `WebPage` serves under `/metrics`."""

    def __init__(self) -> None:
        self._registry = made = Registry("metrics")
        for name, (about, _) in _GAUGES.items():
            made.gauge(name, about)
        for name, (about, _) in _COUNTERS.items():
            made.counter(name, about)
        for name, (about, _) in _BY_WORKER.items():
            made.gauge(name, about, ["worker"])
        other = {name: about for name, (about, _) in _OTHERS.items()}
        made.gauge(_VALIDATION, other[_VALIDATION])
        made.histogram(_SECONDS, other[_SECONDS], _ROUND_SECONDS)
        made.gauge(_WORKERS, other[_WORKERS], ["state"])

    def text(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        return self._registry.text()

    def round(self, record: Round) -> None:
        """Show the newest round."""
        for name, (_, field) in _GAUGES.items():
            self._registry[name].set(getattr(record, field))
        for name, (_, field) in _COUNTERS.items():
            self._registry[name].inc(getattr(record, field) if field else 1)
        self._registry[_SECONDS].observe(record.seconds)
        for name in _BY_WORKER:
            self._registry[name].clear()  # a worker that left is no longer shown
        for member in record.members:
            self._member(member)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Show the newest held-out loss."""
        self._registry[_VALIDATION].set(loss)

    def status(self, values: Mapping[str, Any]) -> None:
        """Count the workers."""
        states = self._registry[_WORKERS]
        states.clear()
        for worker in values["workers"]:
            states.labels(worker["state"]).inc()

    def _member(self, member: MemberRound) -> None:
        for name, (_, field) in _BY_WORKER.items():
            value = getattr(member, field)
            if value is None:  # not known of this worker
                continue
            self._registry[name].labels(str(member.worker)).set(value)
