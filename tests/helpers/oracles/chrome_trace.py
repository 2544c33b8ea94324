"""What a trace file must be for Perfetto and chrome://tracing to draw it right."""

from collections import defaultdict
from typing import Any

KEYS = {
    "X": {"ph": str, "pid": int, "tid": int, "name": str, "ts": float, "dur": float},
    "C": {"ph": str, "pid": int, "tid": int, "name": str, "ts": float, "args": dict},
    "M": {"ph": str, "pid": int, "tid": int, "name": str, "args": dict},
}
LABELS = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
SLACK = 1e-6
"""Microseconds: the rounding of sums of floats."""


def check(trace: dict[str, Any]) -> None:
    """AssertionError that says what is wrong with it."""
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named = set()
    for event in trace["traceEvents"]:
        _check_event(event)
        if event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
    for place, spans in rows(trace).items():
        assert place in named, f"a row without a name: {place}"
        _check_row(spans)


def rows(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The spans of each row, in the order of the file."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def named(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """All spans of a name."""
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == name]


def row_names(trace: dict[str, Any], pid: int) -> set[str]:
    """What the rows of one member are called."""
    return {
        e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name" and e["pid"] == pid
    }


def _check_event(event: dict[str, Any]) -> None:
    keys = KEYS[event["ph"]]
    for key, kind in keys.items():
        value = event[key]
        right = isinstance(value, int | float if kind is float else kind)
        assert right, f"{key} is {value!r} in {event}"
        assert not isinstance(value, bool)
    if event["ph"] in "XC":
        assert event["ts"] >= 0, event
    if event["ph"] == "X":
        assert event["dur"] >= 0, event
    if event["ph"] == "C":
        assert all(isinstance(v, int | float) for v in event["args"].values()), event
    if event["ph"] == "M":
        assert LABELS[event["name"]] in event["args"], event


def _check_row(spans: list[dict[str, Any]]) -> None:
    """Times rise, and spans are inside one another or apart."""
    open_until: list[float] = []
    before = 0.0
    for span in spans:
        begin, end = span["ts"], span["ts"] + span["dur"]
        assert begin >= before - SLACK, f"goes back in time: {span}"
        before = begin
        while open_until and open_until[-1] <= begin + SLACK:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + SLACK, f"crosses: {span}"
        open_until.append(end)
