"""Traces: what is written down, on whose clock, in a form that can be drawn."""

import itertools
import json
import threading

import numpy as np
import pytest
from helpers.oracles.chrome_trace import check, named, row_names, rows
from helpers.worlds.communicators import endpoints, form, outcome, together, world

from pcp.errors import PeerLost, ProtocolError
from pcp.mesh import Mesh
from pcp.runtime.collectives import tracing
from pcp.runtime.collectives.tracing import (
    Count,
    Events,
    Recorder,
    Span,
    chrome,
    tracks,
)
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.mesh_groups import MeshGroups


def test_all_members_in_one_file(tmp_path) -> None:
    path = tmp_path / "trace.json"
    with world("tcp", 3) as members:

        def work(comm: Communicator) -> None:
            with comm.trace(path):
                comm.all_reduce(np.ones(200_000, np.float32), tag="gradient")
                comm.barrier()

        together(members, work)
        assert all(member._recorder is None for member in members)
    trace = json.loads(path.read_text())
    check(trace)
    whole = named(trace, "all_reduce")
    assert {event["pid"] for event in whole} == {0, 1, 2}
    for event in whole:
        facts = event["args"]
        assert facts["outcome"] == "committed"
        assert facts["tag"] == "gradient"
        assert (facts["op"], facts["dtype"]) == ("sum", "float32")
        # A ring of three: two thirds of the array in each of two halves.
        assert facts["sent"] == pytest.approx(4 / 3 * 800_000, rel=1e-3)
        assert facts["received"] == pytest.approx(4 / 3 * 800_000, rel=1e-3)
    assert len(named(trace, "moving")) >= 3
    assert len(named(trace, "barrier")) == 3
    # One clock: all are inside the operation at some common moment.
    begins = max(event["ts"] for event in whole)
    assert begins < min(event["ts"] + event["dur"] for event in whole)
    counts = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    sent = [
        e["args"]["sent"] for e in counts if e["pid"] == 0 and "rank 1" in e["name"]
    ]
    assert sent == sorted(sent)
    assert sent[-1] > 800_000


def test_what_overlaps_has_rows_of_its_own(tmp_path) -> None:
    path = tmp_path / "trace.json"
    with world("in_process", 2) as members:

        def work(comm: Communicator) -> None:
            with comm.trace(path):
                arrays = [np.ones(100_000, np.float32) for _ in range(4)]
                pending = [
                    comm.all_reduce_async(array, tag=f"t{index}")
                    for index, array in enumerate(arrays)
                ]
                for each in pending:
                    each.result(20)

        together(members, work)
    trace = json.loads(path.read_text())
    check(trace)
    assert {"collectives", "collectives (2)"} <= row_names(trace, 0)


def test_groups_of_a_mesh_have_rows_of_their_own(tmp_path) -> None:
    path = tmp_path / "trace.json"
    mesh = Mesh("m", {"dp": 2, "tp": 2})
    with world("tcp", 4) as members:

        def work(comm: Communicator) -> None:
            groups = MeshGroups.form(comm, mesh, [("dp",), ("tp",)])
            with comm.trace(path, groups):
                groups["dp"].all_reduce(np.ones(10_000, np.float32))
                groups["tp"].all_gather(np.ones(10))
            assert groups["dp"]._recorder is None
            groups.close()

        together(members, work)
    trace = json.loads(path.read_text())
    check(trace)
    for rank in range(4):
        rows = {"collectives along dp", "collectives along tp"}
        assert rows <= row_names(trace, rank)
    assert len(named(trace, "all_gather")) == 4


def test_an_aborted_operation_is_in_it_and_the_file_is_this_members(tmp_path) -> None:
    with endpoints(2) as made:
        first, second = form(made)
        entered = threading.Event()

        def die() -> None:
            with second.trace(tmp_path / "b.json"):
                entered.wait(30)
                second._crash()
                raise KeyError("its own")

        def work() -> None:
            with first.trace(tmp_path / "a.json"):
                pending = first.all_reduce_async(np.ones(4))
                entered.set()
                pending.result()

        found = together([work, die], lambda what: outcome(what))
        assert [type(f) for f in found] == [PeerLost, KeyError]
    trace = json.loads((tmp_path / "a.rank0.json").read_text())
    check(trace)
    assert named(trace, "all_reduce")[0]["args"]["outcome"] == "PeerLost"
    assert (tmp_path / "b.rank1.json").exists()
    assert not (tmp_path / "a.json").exists()


def test_clocks_of_one_machine_agree() -> None:
    with world("tcp", 2) as members:
        # Both members read the same clock: what is found is the error alone.
        offset = members[1].clock_offset(0)
        trip = members[1].health()[0].least_round_trip
    assert 0 < trip < 1.0
    assert abs(offset) <= trip / 2 + 1e-6


def test_members_are_moved_to_one_clock() -> None:
    early = Events([Span("collectives", "a", 100.0, 101.0)])
    late = Events([Span("collectives", "b", 5000.5, 5001.0)])
    trace = chrome([("rank 0", early, 0.0), ("rank 1", late, -4900.0)])
    check(trace)
    assert named(trace, "a")[0]["ts"] == 0.0
    assert named(trace, "b")[0]["ts"] == pytest.approx(500_000.0)
    assert named(trace, "b")[0]["dur"] == pytest.approx(500_000.0)


def test_tracks_are_as_few_as_can_be() -> None:
    drawn = np.random.default_rng(7).uniform(0, 10, (60, 2))
    spans = [Span("r", str(i), min(p), max(p)) for i, p in enumerate(drawn.tolist())]
    made = tracks(spans)
    for track in made:
        assert all(a.end <= b.begin for a, b in itertools.pairwise(track))
    moments = [s.begin for s in spans]
    most = max(sum(s.begin <= t < s.end for s in spans) for t in moments)
    assert len(made) == most
    assert sorted(s.name for track in made for s in track) == sorted(
        s.name for s in spans
    )


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(tracing, "LIMIT", 3)
    recorder = Recorder()
    for index in range(5):
        recorder.of("other").span("r", "s", index, index + 0.5)
        recorder.count("bytes", index, {"sent": index})
    assert len(recorder.events.spans) + len(recorder.events.counts) == 3
    assert recorder.events.dropped == 7
    trace = chrome([("rank 0", recorder.events, 0.0)])
    check(trace)
    assert trace["otherData"]["dropped"] == 7


def test_events_travel() -> None:
    parts = (("opening", 1.0, 1.5),)
    events = Events(
        [Span("r", "s", 1.0, 2.0, {"op": "sum", "shape": [3]}, parts)],
        [Count("bytes", 1.0, {"sent": 4})],
        dropped=2,
    )
    assert Events.from_bytes(events.to_bytes()) == events


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"spans":[[1]],"counts":[],"dropped":0}']
)
def test_what_is_no_trace_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="no trace"):
        Events.from_bytes(raw)


def test_rows_of_the_program_come_first() -> None:
    recorder = Recorder()
    for row in ("collectives", "imports", "program"):
        recorder.span(row, "s", 0.0, 1.0)
    trace = chrome([("rank 0", recorder.events, 0.0)])
    titles = {
        event["args"]["name"]: event["tid"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert sorted(titles, key=titles.__getitem__) == [
        "program",
        "imports",
        "collectives",
    ]
    assert len(rows(trace)) == 3
