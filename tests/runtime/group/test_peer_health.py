"""Health of peers: echoes, and who is late."""

import time

import numpy as np
import pytest
from helpers.simulation.silent_link import SilentLink
from helpers.worlds.communicators import together, world

from pcp.runtime.group.peer_health import (
    ANSWER,
    ASK,
    Health,
    health_text,
    straggler_text,
    stragglers,
)
from pcp.runtime.transport.frame import Header, Kind


def ping(step: int, offset: int = 0, tag: int = 0) -> Header:
    return Header(Kind.PING, 1, tag, 0, step, offset, 0, 0)


def test_the_clock_of_a_peer_is_found() -> None:
    health, tube = Health(), SilentLink()
    health.admit(1)
    ahead = 7_000_000_000  # its clock is 7 s ahead
    for _ in range(3):
        health.ask(1, tube)
        asked = tube.frames[-1].offset
        health.heard(1, tube, ping(ANSWER, asked, time.monotonic_ns() + ahead))
    peer = health.peers[1]
    assert peer.round_trip.count == 3
    assert abs(peer.clock_offset - 7.0) <= peer.least_round_trip


def test_only_the_answer_to_our_question_counts() -> None:
    health, tube = Health(), SilentLink()
    health.admit(1)
    health.heard(1, tube, ping(ANSWER, 12345, 99))
    health.heard(1, tube, ping(77))
    health.heard(1, tube, ping(0))
    assert health.peers[1].round_trip.count == 0
    assert not tube.frames


def test_a_flood_of_questions_is_not_answered_with_a_flood() -> None:
    health, tube = Health(), SilentLink()
    health.admit(1)
    for _ in range(10_000):
        health.heard(1, tube, ping(ASK, 5))
    assert 0 < len(tube.frames) <= 64
    assert {(f.step, f.offset) for f in tube.frames} == {(ANSWER, 5)}
    health.beat(1, tube, interval=1e9, ask=True)
    health.heard(1, tube, ping(ASK, 6))
    assert tube.frames[-1].offset == 6


def test_an_echo_that_waits_is_not_asked_for_again_soon() -> None:
    health, tube = Health(), SilentLink()
    health.admit(1)
    health.beat(1, tube, interval=0.0, ask=True)
    health.beat(1, tube, interval=0.001, ask=True)
    assert len(tube.frames) == 1


def test_who_comes_late_is_named() -> None:
    with world("in_process", 4) as members:

        def work(comm):
            for _ in range(8):
                if comm.rank == 2:
                    time.sleep(0.03)
                comm.barrier()
            return comm.stragglers()

        found = together(members, work)
    assert all(f == found[0] for f in found)
    assert found[0][0].rank == 2
    assert found[0][0].lateness > 0.01
    assert found[0][0].share > 0.6
    assert straggler_text(found[0]).splitlines()[1].split()[0] == "2"


def test_one_members_odd_view_does_not_decide() -> None:
    seen = np.zeros((4, 4))
    seen[:, 3] = 0.2
    seen[0, 1] = 50.0  # only member 0 says so
    found = stragglers(seen)
    assert found[0].rank == 3
    assert found[0].lateness == pytest.approx(0.2)
    assert found[0].share == pytest.approx(1.0)


def test_who_was_not_measured_by_a_member_is_not_early_for_it() -> None:
    seen = np.full((6, 6), np.nan)
    seen[[0, 2], [1, 3]] = 0.3, 0.2
    found = stragglers(seen)
    assert [(s.rank, s.lateness) for s in found[:2]] == [(1, 0.3), (3, 0.2)]
    assert [s.lateness for s in found[2:]] == [0.0] * 4


def test_nobody_is_late() -> None:
    assert [s.share for s in stragglers(np.zeros((3, 3)))] == [0.0] * 3
    assert [s.rank for s in stragglers(np.zeros((1, 1)))] == [0]


def test_a_table_of_the_peers() -> None:
    with world("tcp", 3) as members:
        members[0].clock_offset(2)
        lines = health_text(members[0].health()).splitlines()
    assert len(lines) == 3
    assert [line.split()[0] for line in lines] == ["peer", "1", "2"]
    assert float(lines[2].split()[3]) > 0
