"""Traces: spans of one member, and a trace file that Perfetto opens.

    with comm.trace("trace.json", program):
        program["grad"](*arguments)           # on all members

Each member keeps its own spans; at the end rank 0 gathers them, moves them to its
own clock (`peer_health` knows by how much they differ) and writes the file, in the
trace event format of Chrome: a process for each member, and in it a row for its
program, and one or more for its imports and for each of its groups. Open it at
https://ui.perfetto.dev or chrome://tracing.

A span is (row, name, begin, end, facts); spans of one row are inside one another,
or apart. Where operations overlap they get rows of their own.
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pcp import strict_json
from pcp.errors import ProtocolError
from pcp.runtime.collectives.timing import TimedOperation, Timing
from pcp.runtime.transport.link import Link

LIMIT = 1 << 18
"""Spans and counts that one member keeps; later ones are only counted."""
COLLECTIVES = "collectives"
Facts = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A named interval; seconds of the member's monotonic clock.

    `parts` are consecutive (name, begin, end) inside it.
    """

    row: str
    name: str
    begin: float
    end: float
    facts: Facts = field(default_factory=dict)
    parts: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class Count:
    """Numbers at one moment, drawn as a curve."""

    name: str
    when: float
    values: dict[str, float]


@dataclass
class Events:
    """The spans and counts of one member."""

    spans: list[Span] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    dropped: int = 0

    @property
    def full(self) -> bool:
        """Whether no more spans are kept."""
        return len(self.spans) + len(self.counts) >= LIMIT

    def to_bytes(self) -> bytes:
        """The events as bytes, for the member that writes the file."""
        spans = [(s.row, s.name, s.begin, s.end, s.facts, s.parts) for s in self.spans]
        counts = [(c.name, c.when, c.values) for c in self.counts]
        whole = {"spans": spans, "counts": counts, "dropped": self.dropped}
        return strict_json.dumps(whole, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Events":
        """The events of a peer's `to_bytes`; ProtocolError for other bytes."""
        try:
            whole = strict_json.parse(raw)
            spans = [
                Span(str(row), str(name), float(begin), float(end), dict(facts), parts)
                for row, name, begin, end, facts, rest in whole["spans"]
                for parts in [tuple((str(n), float(a), float(b)) for n, a, b in rest)]
            ]
            counts = [
                Count(str(name), float(when), dict(values))
                for name, when, values in whole["counts"]
            ]
            return cls(spans, counts, int(whole["dropped"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"a member sent no trace: {error!r}") from None


class Traced(Protocol):
    """An object that writes spans: a communicator, its groups, a `Program`."""

    _recorder: Any
    """A `Recorder`, or None."""


class Recorder:
    """Takes spans from any thread. `row` is where operations of its group go."""

    def __init__(self, row: str = COLLECTIVES, events: Events | None = None) -> None:
        self.row = row
        self.events = events or Events()
        self._lock = threading.Lock()

    def of(self, row: str) -> "Recorder":
        """The recorder of another group of this member, of the same events."""
        return Recorder(row, self.events)

    def span(
        self,
        row: str,
        name: str,
        begin: float,
        end: float,
        facts: Facts | None = None,
        parts: Sequence[tuple[str, float, float]] = (),
    ) -> None:
        """Record a span from `begin` to `end`."""
        if self._room():
            self.events.spans.append(
                Span(row, name, begin, end, facts or {}, tuple(parts))
            )

    def count(self, name: str, when: float, values: Mapping[str, float]) -> None:
        """Record numbers at one moment."""
        if self._room():
            self.events.counts.append(Count(name, when, dict(values)))

    def operation(
        self, operation: TimedOperation, rank: int, epoch: int, outcome: str
    ) -> None:
        """Record an operation that is over."""
        timing, what = operation.timing, operation.descriptor
        facts = {key: what[key] for key in ("op", "dtype", "shape") if key in what}
        facts |= {"rank": rank, "epoch": epoch, "outcome": outcome}
        facts |= {"sent": timing.sent, "received": timing.received}
        if "ring" in what:
            facts["ring"] = what["ring"]
        if operation.label:
            facts["tag"] = operation.label
        begin, end, parts = timing.posted, timing.ended, _stages(timing)
        self.span(self.row, operation.name, begin, end, facts, parts)

    def traffic(self, links: Mapping[int, Link], when: float) -> None:
        """Record the byte counts of the links, as curves."""
        for rank, link in links.items():
            values = {"sent": link.bytes_sent, "received": link.bytes_received}
            self.count(f"{self.row}: bytes, rank {rank}", when, values)

    def _room(self) -> bool:
        if not self.events.full:
            return True
        with self._lock:
            self.events.dropped += 1
        return False


def _stages(timing: Timing) -> list[tuple[str, float, float]]:
    """The stages an operation went through; data may come before all are there."""
    reached = (
        ("opening", timing.opened),
        ("waiting for data", timing.first),
        ("moving", timing.voted),
        ("voting", timing.ended if timing.voted else 0.0),
    )
    stages, since = [], timing.posted
    for name, until in reached:
        if until > since:
            stages.append((name, since, until))
            since = until
    return stages


# --- the file ---


def chrome(members: Sequence[tuple[str, Events, float]]) -> dict[str, Any]:
    """The trace of members: (name, events, seconds to add to its clock).

    The first moment becomes 0; times are in microseconds.
    """
    begins = [s.begin + shift for _, events, shift in members for s in events.spans]
    begins += [c.when + shift for _, events, shift in members for c in events.counts]
    zero = min(begins, default=0.0)
    out: list[dict[str, Any]] = []
    for pid, (name, events, shift) in enumerate(members):
        out += _member(pid, name, events, shift - zero)
    dropped = sum(events.dropped for _, events, _ in members)
    facts = {"dropped": dropped, "clock": "of the first member"}
    return {"traceEvents": out, "displayTimeUnit": "ms", "otherData": facts}


def write_trace(path: str | Path, members: Sequence[tuple[str, Events, float]]) -> None:
    """Write the trace of `chrome` to a file."""
    Path(path).write_text(strict_json.dumps(chrome(members), separators=(",", ":")))


@contextmanager
def recorded(path: str | Path, thing: "Traced") -> Iterator[Recorder]:
    """Trace the block, of one member without a group, to a file."""
    before, recorder = thing._recorder, Recorder()
    thing._recorder = recorder
    try:
        yield recorder
    finally:
        thing._recorder = before
        write_trace(path, [("rank 0", recorder.events, 0.0)])


def _member(
    pid: int, name: str, events: Events, shift: float
) -> Iterator[dict[str, Any]]:
    yield _label(pid, 0, "process_name", {"name": name})
    yield _label(pid, 0, "process_sort_index", {"sort_index": pid})
    rows: dict[str, list[Span]] = defaultdict(list)
    for span in events.spans:
        rows[span.row].append(span)
    tid = 0
    for row in sorted(rows, key=_row_order):
        for track, spans in enumerate(tracks(rows[row])):
            tid += 1
            title = row if not track else f"{row} ({track + 1})"
            yield _label(pid, tid, "thread_name", {"name": title})
            yield _label(pid, tid, "thread_sort_index", {"sort_index": tid})
            for span in spans:
                yield from _complete(pid, tid, span, shift)
    for count in sorted(events.counts, key=lambda c: (c.name, c.when)):
        yield {
            "ph": "C",
            "pid": pid,
            "tid": 0,
            "name": count.name,
            "ts": _nanoseconds(count.when + shift) / 1000,
            "args": count.values,
        }


def _row_order(row: str) -> tuple[int, str]:
    """The key of a row: the program first, then its imports, then the groups."""
    order = ("program", "import")
    return next((i for i, s in enumerate(order) if row.startswith(s)), 2), row


def tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """The spans in order of time, on as few tracks as separate them."""
    free: list[tuple[float, int]] = []
    out: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (s.begin, s.end)):
        if free and free[0][0] <= span.begin:
            _, track = heapq.heappop(free)
        else:
            track = len(out)
            out.append([])
        out[track].append(span)
        heapq.heappush(free, (span.end, track))
    return out


def _complete(pid: int, tid: int, span: Span, shift: float) -> Iterator[dict[str, Any]]:
    begin, end = _nanoseconds(span.begin + shift), _nanoseconds(span.end + shift)
    yield _duration(pid, tid, span.name, begin, end) | {"args": span.facts}
    for name, first, last in span.parts:
        a = max(begin, _nanoseconds(first + shift))
        b = min(end, _nanoseconds(last + shift))
        if a < b:
            yield _duration(pid, tid, name, a, b)


def _duration(pid: int, tid: int, name: str, begin: int, end: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": "pcp",
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
    }


def _label(pid: int, tid: int, what: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)
