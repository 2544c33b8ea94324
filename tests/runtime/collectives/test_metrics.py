"""Counters, gauges, histograms: what they count, and what Prometheus reads."""

import urllib.request

import numpy as np
import pytest
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    form,
    outcome,
    together,
    world,
)
from prometheus_client.parser import text_string_to_metric_families

from pcp.errors import ConfigError, PeerLost
from pcp.runtime.collectives.metrics import Average, Histogram
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.prometheus_exporter import Exporter


def test_operations_bytes_and_links() -> None:
    with world("tcp", 2) as members:
        for _ in range(3):
            together(members, lambda c: c.all_reduce(np.ones(100_000, np.float32)))
        together(members, lambda c: c.barrier())
        found = members[0].metrics()
        link = members[0].bytes_sent
    done = 'pcp_operations_total{kind="all_reduce",outcome="committed"}'
    assert found[done] == 3
    assert found['pcp_operation_seconds_count{kind="all_reduce"}'] == 3
    assert 0 < found['pcp_operation_seconds_sum{kind="all_reduce"}'] < 60
    assert found['pcp_operation_wait_seconds_count{kind="barrier"}'] >= 1
    # Of two members each sends half the array, twice.
    sent = 'pcp_payload_bytes_total{kind="all_reduce",direction="sent"}'
    assert found[sent] == 3 * 400_000
    assert found[sent.replace("sent", "received")] == 3 * 400_000
    assert found['pcp_operation_sent_bytes_sum{kind="all_reduce"}'] == 3 * 400_000
    assert (
        3 * 400_000 < found['pcp_link_bytes_total{peer="1",direction="sent"}'] <= link
    )
    assert found["pcp_world_size"] == 2
    assert found["pcp_operations_in_flight"] == 0


def test_small_operations_count_their_eager_payloads() -> None:
    with world("in_process", 3) as members:
        together(members, lambda c: c.all_reduce(np.ones(10)))
        found = members[1].metrics()
    assert found['pcp_payload_bytes_total{kind="all_reduce",direction="sent"}'] == 160
    assert (
        found['pcp_payload_bytes_total{kind="all_reduce",direction="received"}'] == 160
    )


def test_aborts_and_lost_peers_are_counted() -> None:
    with endpoints(2) as made:
        first, second = form(made)
        pending = first.all_reduce_async(np.ones(4))
        second._crash()
        assert isinstance(outcome(pending.result), PeerLost)
        found = first.metrics()
        assert found['pcp_operations_total{kind="all_reduce",outcome="PeerLost"}'] == 1
        assert found['pcp_events_total{event="peer lost"}'] == 1
        assert 'pcp_operation_seconds_count{kind="all_reduce"}' not in found


def test_counters_go_on_in_the_next_group() -> None:
    with endpoints(2) as made:
        for epoch in (1, 2):
            members = form(made, epoch)
            together(members, lambda c: c.all_reduce(np.ones(100_000)))
            for member in members:
                member.close()
        found = members[0].metrics()
        done = 'pcp_operations_total{kind="all_reduce",outcome="committed"}'
        assert found[done] == 2
        carried = found['pcp_closed_link_bytes_total{peer="1",direction="sent"}']
        assert carried > 2 * 800_000


def test_retries_and_renewals_are_counted() -> None:
    from pcp.runtime.group.coordinator import Coordinator

    with Coordinator.listen("127.0.0.1:0", first=2) as coordinator:
        members = together(
            "ab", lambda n: Communicator.join(coordinator.address, name=n, timeout=30)
        )
        try:
            members[1]._crash()
            total = members[0].retry(lambda c: c.all_reduce(np.ones(2)), timeout=30)
            assert (total == 1).all()
            found = members[0].metrics()
        finally:
            for member in members:
                member.close()
    assert found['pcp_events_total{event="retry"}'] >= 1
    assert found['pcp_events_total{event="renewal"}'] >= 1
    assert found["pcp_epoch"] > 1


def test_prometheus_reads_it() -> None:
    with world("tcp", 2) as members:
        together(members, lambda c: c.all_reduce(np.ones(50_000)))
        members[0].clock_offset(1)
        with Exporter.serve("127.0.0.1:0", members[0].collect) as exporter:
            url = f"http://127.0.0.1:{exporter.port}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                page = answer.read().decode()
            with pytest.raises(ConfigError, match="choose another port"):
                Exporter.serve(f"127.0.0.1:{exporter.port}", members[0].collect)
    families = {f.name: f for f in text_string_to_metric_families(page)}
    done = families["pcp_operations"]
    assert done.type == "counter"
    values = {s.labels["kind"]: s.value for s in done.samples}
    assert values["all_reduce"] == 1
    seconds = families["pcp_operation_seconds"]
    assert seconds.type == "histogram"
    buckets = [
        (float(s.labels["le"]), s.value)
        for s in seconds.samples
        if s.name.endswith("_bucket") and s.labels["kind"] == "all_reduce"
    ]
    assert buckets[-1] == (float("inf"), 1)
    assert [n for _, n in buckets] == sorted(n for _, n in buckets)
    assert families["pcp_round_trip_seconds"].samples[0].value > 0


def test_heartbeats_measure_round_trips() -> None:
    with endpoints(2, heartbeat=0.02) as made:
        members = form(made)
        eventually(lambda: members[0].health()[0].round_trip.count >= 5, 20)
        seen = members[0].health()[0]
        assert 0 < seen.least_round_trip <= seen.round_trip.value * 1.001
        assert seen.sent.value > 0


def test_histograms_count_by_powers_of_two() -> None:
    made = Histogram()
    for value in (0, 1, 2, 3, 4, 1000):
        made.observe(value)
    assert (made.count, made.total) == (6, 1010)
    rows = dict(made.cumulative())
    # Values below 1, 2, 4, 8, ...
    assert [rows[b] for b in (1, 2, 4, 8, 512, 1024)] == [1, 2, 4, 5, 5, 6]
    assert made.quantile(0.5) == 4
    assert made.quantile(1.0) == 1024
    assert Histogram().cumulative() == []
    assert Histogram().quantile(0.5) == 0.0


def test_a_histogram_takes_any_value() -> None:
    made = Histogram(1e-6)
    made.observe(1e12)
    assert made.count == 1
    assert made.counts[-1] == 1
    assert made.cumulative()[-1:] == [] or made.cumulative()[-1][1] == 0


def test_moving_average_follows_rfc_6298() -> None:
    made = Average()
    smoothed = deviation = 0.0
    for index, sample in enumerate((1.0, 2.0, 0.5, 4.0)):
        made.add(sample)
        if not index:
            smoothed, deviation = sample, sample / 2
        else:
            deviation = 0.75 * deviation + 0.25 * abs(smoothed - sample)
            smoothed = 0.875 * smoothed + 0.125 * sample
    assert made.value == pytest.approx(smoothed)
    assert made.deviation == pytest.approx(deviation)
