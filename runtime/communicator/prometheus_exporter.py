"""Metrics for Prometheus, over HTTP: `GET /metrics`.

    with Exporter.serve("0.0.0.0:9100", comm.collect) as exporter:
        ...                                   # exporter.port is the port

Needs the package `prometheus-client` (extra `metrics`). Sources are read when
Prometheus asks, so that no copy is kept meanwhile.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from pcp.errors import ConfigError, MissingPackage, install
from pcp.runtime.collectives.metrics import Histogram, Metric, Source
from pcp.runtime.transport.address import parse_address


class Exporter:
    """A small HTTP server. Make one with `Exporter.serve`."""

    def __init__(self, server: Any, thread: Any) -> None:
        self._server = server
        self._thread = thread

    @classmethod
    def serve(cls, address: str, *sources: Source) -> "Exporter":
        """Serve what `sources` collect at `address` (port 0: any free one).

        ConfigError when prometheus-client is not installed or the port is taken.
        """
        client = prometheus_client()
        registry = client.CollectorRegistry()
        registry.register(_Collector(import_module(f"{client.__name__}.core"), sources))
        host, port = parse_address(address)
        try:
            server, thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics at {address}: {error.strerror or error}; "
                "choose another port"
            ) from error
        return cls(server, thread)

    @property
    def port(self) -> int:
        """The port of its listener."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Collector:
    """The metrics as prometheus-client's families, made anew for every request."""

    def __init__(self, core: Any, sources: Sequence[Source]) -> None:
        self._families = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        self._sources = sources

    def describe(self) -> Iterable[Any]:
        """No families beforehand: their names are known on request."""
        return ()

    def collect(self) -> Iterator[Any]:
        """One family for each metric."""
        for source in self._sources:
            for metric in source():
                yield self._family(metric)

    def _family(self, metric: Metric) -> Any:
        make = self._families[metric.kind]
        family = make(metric.name, metric.about, labels=metric.labels)
        for sample in metric.samples:
            if isinstance(sample.value, Histogram):
                bounds = [(str(b), n) for b, n in sample.value.cumulative()]
                bounds.append(("+Inf", sample.value.count))
                family.add_metric(sample.labels, bounds, sample.value.total)
            else:
                family.add_metric(sample.labels, sample.value)
        return family


def prometheus_client(extra: str = "metrics") -> Any:
    """The package; `MissingPackage` names the extra of pcp that has it."""
    try:
        return import_module("prometheus_client")
    except ImportError as error:
        raise MissingPackage(
            f"metrics need prometheus-client: {install(extra)}"
        ) from error
