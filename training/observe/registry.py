"""A process's metrics by name, in the types of the package `prometheus-client`."""

from collections.abc import Sequence
from typing import Any

from pcp.runtime.communicator.prometheus_exporter import prometheus_client


class Registry:
    """The metrics of `GET /metrics`; `MissingPackage` names the extra with the package.

    `registry[name]` is the metric.
    """

    def __init__(self, extra: str) -> None:
        self._client = prometheus_client(extra)
        self._registry = self._client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._metrics[name]

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        """A number that is set."""
        self._add(self._client.Gauge, name, about, labels)

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        """A number that grows; Prometheus stores it with the suffix `_total`."""
        self._add(self._client.Counter, name, about, labels)

    def histogram(self, name: str, about: str, buckets: Sequence[float]) -> None:
        """How often a value was up to each of these bounds."""
        self._add(self._client.Histogram, name, about, buckets=buckets)

    def text(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        content = self._client.generate_latest(self._registry)
        return content, self._client.CONTENT_TYPE_LATEST

    def _add(self, kind: Any, name: str, *facts: Any, **more: Any) -> None:
        self._metrics[name] = kind(name, *facts, registry=self._registry, **more)
