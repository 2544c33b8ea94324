"""Counters, gauges and histograms of one member, cheap enough to be always on.

    comm.metrics()          {'pcp_operations_total{kind="all_reduce",...}': 12.0, ...}
    Exporter.serve(...)     the same for Prometheus (`prometheus_exporter`)

An operation costs a handful of additions when it ends. Buckets of histograms are
powers of two, so that a value finds its own by the length of its binary form.
Only the loop's thread writes; readers get copies.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.runtime.collectives.timing import TimedOperation
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.transport.link import Link

_BUCKETS = 40
COMMITTED = "committed"


class Histogram:
    """How often values of which size were seen, in units of `unit`.

    Bucket b counts values below 2**b units, the last one everything beyond.
    """

    __slots__ = ("count", "counts", "total", "unit")

    def __init__(self, unit: float = 1.0) -> None:
        self.unit = unit
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value, not negative."""
        bucket = int(value / self.unit).bit_length()
        self.counts[bucket if bucket < _BUCKETS else -1] += 1
        self.count += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, values up to it), without the empty buckets at the ends."""
        used = [b for b, count in enumerate(self.counts) if count]
        if not used:
            return []
        seen = 0
        rows = []
        for bucket in range(used[0], min(used[-1], _BUCKETS - 2) + 1):
            seen += self.counts[bucket]
            rows.append((2**bucket * self.unit, seen))
        return rows

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which the share of all values is reached."""
        reached = 0
        for bucket, count in enumerate(self.counts):
            reached += count
            if reached and reached >= share * self.count:
                return 2**bucket * self.unit
        return 0.0


@dataclass(slots=True)
class Average:
    """A moving average and the mean deviation from it, as TCP keeps them (RFC 6298)."""

    value: float = 0.0
    deviation: float = 0.0
    count: int = 0

    def add(self, sample: float) -> None:
        """One more sample; the newest weighs an eighth."""
        self.count += 1
        if self.count == 1:
            self.value, self.deviation = sample, sample / 2
            return
        self.deviation += (abs(sample - self.value) - self.deviation) / 4
        self.value += (sample - self.value) / 8


@dataclass(frozen=True)
class Sample:
    """One number or histogram, under a metric's labels."""

    labels: tuple[str, ...]
    value: "float | Histogram"


@dataclass(frozen=True)
class Metric:
    """All samples of one name; `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    about: str
    labels: tuple[str, ...]
    samples: Sequence[Sample]

    def flat(self) -> Iterator[tuple[str, float]]:
        """Name and value as in Prometheus' text form, without the buckets."""
        for sample in self.samples:
            pairs = zip(self.labels, sample.labels, strict=True)
            inside = ",".join(f'{label}="{value}"' for label, value in pairs)
            where = f"{{{inside}}}" if inside else ""
            if isinstance(sample.value, Histogram):
                yield f"{self.name}_count{where}", float(sample.value.count)
                yield f"{self.name}_sum{where}", sample.value.total
            else:
                yield f"{self.name}{where}", float(sample.value)


Source = Callable[[], Iterable[Metric]]


def gauge(name: str, about: str, value: float) -> Metric:
    """A single number that goes up and down."""
    return Metric(name, "gauge", about, (), [Sample((), value)])


def table(
    name: str, kind: str, about: str, labels: Sequence[str], rows: dict[Any, Any]
) -> Metric:
    """A metric out of a dictionary from label values to numbers or histograms."""
    samples = [
        Sample(tuple(map(str, key if isinstance(key, tuple) else (key,))), value)
        for key, value in sorted(rows.copy().items(), key=lambda item: str(item[0]))
    ]
    return Metric(name, kind, about, tuple(labels), samples)


class Telemetry:
    """The counters of one endpoint, or of one member inside a process.

    They outlive groups: a member of an elastic world has one telemetry for all epochs.
    `sources` add metrics that are read on request.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        """The recorder of a trace; None without one."""
        self.sources: list[Source] = []
        self.operations: dict[tuple[str, str], int] = defaultdict(int)
        self.seconds: dict[str, Histogram] = defaultdict(_microseconds)
        self.waits: dict[str, Histogram] = defaultdict(_microseconds)
        self.sizes: dict[str, Histogram] = defaultdict(Histogram)
        self.payload: dict[tuple[str, str], int] = defaultdict(int)
        self.links: dict[tuple[int, str], int] = defaultdict(int)
        self.events: dict[str, int] = defaultdict(int)

    def ended(
        self,
        operation: TimedOperation,
        rank: int,
        epoch: int,
        links: Mapping[int, Link],
    ) -> None:
        """Count an operation that is over, and write it to the trace."""
        timing, kind, error = operation.timing, operation.name, operation.error
        timing.ended = time.monotonic()
        outcome = COMMITTED if error is None else type(error).__name__
        self.operations[kind, outcome] += 1
        self.payload[kind, "sent"] += timing.sent
        self.payload[kind, "received"] += timing.received
        if error is None:
            self.seconds[kind].observe(timing.ended - timing.posted)
            self.sizes[kind].observe(timing.sent)
        if timing.opened:
            self.waits[kind].observe(max(0.0, timing.opened - timing.posted))
        if self.recorder is not None:
            self.recorder.operation(operation, rank, epoch, outcome)
            self.recorder.traffic(links, timing.ended)

    def keep(self, ranks: Mapping[Link, int]) -> None:
        """Keep the byte counts of the links of a group that ends."""
        for link, rank in ranks.items():
            self.links[rank, "sent"] += link.bytes_sent
            self.links[rank, "received"] += link.bytes_received

    def count(self, event: str) -> None:
        """Count an event: a retry, a renewal, a lost peer."""
        self.events[event] += 1

    def metrics(self) -> list[Metric]:
        """All metrics, as they are now."""
        own = [
            table(name, kind, about, labels, getattr(self, attribute))
            for name, kind, about, labels, attribute in _TABLES
        ]
        # Of a group that ends and one that is being formed the newest counts.
        theirs = {m.name: m for source in list(self.sources) for m in source()}
        return own + list(theirs.values())

    def flat(self) -> dict[str, float]:
        """`metrics` by name and labels."""
        return dict(pair for metric in self.metrics() for pair in metric.flat())


def _microseconds() -> Histogram:
    return Histogram(1e-6)


_TABLES = (
    (
        "pcp_operations_total",
        "counter",
        "operations that are over, by how they ended: committed, or the error",
        ("kind", "outcome"),
        "operations",
    ),
    (
        "pcp_operation_seconds",
        "histogram",
        "from the call to the commit",
        ("kind",),
        "seconds",
    ),
    (
        "pcp_operation_wait_seconds",
        "histogram",
        "from the call until all members had made it, too",
        ("kind",),
        "waits",
    ),
    (
        "pcp_operation_sent_bytes",
        "histogram",
        "payload that one operation of this member sent",
        ("kind",),
        "sizes",
    ),
    (
        "pcp_payload_bytes_total",
        "counter",
        "payload of operations",
        ("kind", "direction"),
        "payload",
    ),
    (
        "pcp_closed_link_bytes_total",
        "counter",
        "bytes of earlier groups' connections, headers included",
        ("peer", "direction"),
        "links",
    ),
    (
        "pcp_events_total",
        "counter",
        "retries, renewals and lost peers",
        ("event",),
        "events",
    ),
)


def described() -> dict[str, str]:
    """The description of each metric of a member, by its name."""
    return {name: f"{what}, a {kind}" for name, kind, what, _, _ in _TABLES}
