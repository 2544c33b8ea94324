"""Frames nobody should send: no crash, no hang, bounded memory, others live on.

Every number of frames here counts only what is mutated or made up.
"""

import contextlib
import random
import threading

import numpy as np
import pytest
from helpers.faults import frame_fuzzer
from helpers.faults.handshake_fuzzer import GREETINGS, MEMBERS, form_with_liars, knock
from helpers.oracles.memory_growth import resident_growth, traced
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together

from pcp.errors import ConfigError, PeerLost, RuntimeFault, Timeout
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import Frame, Kind

MIB = 1 << 20


def in_and_among_operations(frames: int, seed: int) -> None:
    """Members in a group, before, in and after each kind of operation."""
    threads = threading.active_count()
    with frame_fuzzer.watched() as tally, resident_growth(192 * MIB):
        frame_fuzzer.fuzz_operations(frames - 1000, seed, tally)
        # Calls that failed, and what a compiled loop held for them, go as garbage does.
        with traced(peak=72 * MIB, kept=4 * MIB):
            frame_fuzzer.fuzz_operations(1000, seed + 1, tally, at_once=2)
        assert tally.frames >= frames
        # Neither an empty test nor one whose frames are all taken for noise.
        assert tally.finished > frames // 20
        assert tally.failed > frames // 20
    assert threading.active_count() == threads


def test_operations_survive_1_000_frames() -> None:
    in_and_among_operations(1_000, seed=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_operations_survive_a_million_frames(seed: int) -> None:
    in_and_among_operations(100_000, seed=1000 + seed)


@pytest.mark.parametrize("name", frame_fuzzer.OPERATIONS)
def test_a_recorded_conversation_works_when_nothing_is_changed(name: str) -> None:
    """Otherwise what is mutated would never get anywhere."""
    script = frame_fuzzer.scripts()[name]
    loop = Loop("pcp-control")
    victim = frame_fuzzer.Victim(loop, shared=False)
    loop.ask(victim.admit)
    try:
        pending = frame_fuzzer.OPERATIONS[name](victim.comm)
        loop.ask(lambda: None)  # posted: data may come from now on
        for frame in script:
            victim.sock.sendall(frame_fuzzer.pack_header(frame, frame_fuzzer.EPOCH))
            victim.sock.sendall(frame.payload)
        pending.result(20)
        assert victim.group.fault is None
    finally:
        victim.close()
        loop.close()


@pytest.mark.parametrize("key", [None, "sesame, open up"])
def test_an_endpoint_survives_strangers_and_its_group_lives_on(key) -> None:
    before_the_handshake(key, 7, 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("key", [None, "sesame, open up"])
def test_an_endpoint_survives_half_a_million_frames_of_strangers(key) -> None:
    """A million with and without a key; a few in each of as many connections."""
    before_the_handshake(key, 70, 1000)


def before_the_handshake(key: str | None, seed: int, turns: int) -> None:
    """500 bad frames a turn; in between, those inside are heard and agree."""
    rng = random.Random(seed)
    with endpoints(2, key=key) as made, frame_fuzzer.watched() as tally:
        comms = form(made)
        made[0].serve_snapshot(lambda: (1, {"a": np.ones(3)}))
        with resident_growth(96 * MIB):
            for _ in range(turns):
                knock(made[0], rng, 500, tally, GREETINGS)
                values = together(comms, lambda c: c.all_reduce(np.ones(20_000)))
                assert all((v == 2).all() for v in values)


def test_a_coordinator_survives_strangers_and_its_group_lives_on() -> None:
    rng = random.Random(8)
    with (
        frame_fuzzer.watched() as tally,
        Coordinator.listen("127.0.0.1:0", first=2) as where,
    ):
        comms = together(
            ["a", "b"], lambda name: Communicator.join(where.address, name=name)
        )
        try:
            knock(where.endpoint, rng, 1500, tally, MEMBERS)
            assert together(comms, lambda c: c.all_reduce(np.ones(2)).sum()) == [4, 4]
            assert {"a", "b"} <= set(where.status()["members"])
        finally:
            for comm in comms:
                comm.close()


def test_forming_with_liars_fails_and_the_endpoint_lives_on() -> None:
    with frame_fuzzer.watched() as tally, endpoints(2) as made:
        form_with_liars(made[0], random.Random(9), 40, tally)
        comms = form(made, epoch=1 << 20)
        assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]


def test_survivors_of_a_lying_member_agree_and_form_anew() -> None:
    """A member of the group that lies is out; nobody else is."""
    rng = random.Random(10)
    lies = 0
    with frame_fuzzer.watched() as tally, endpoints(3) as made:
        for turn in range(15):
            liar = frame_fuzzer.Liar(rng, 0.0)
            made[2].faults = liar
            comms = form(made, epoch=2 * turn + 1, timeout=30)
            liar._rate = 0.2
            for size in (10, 30_000):
                results = together(
                    comms,
                    lambda c, n=size: outcome(
                        lambda: c.all_reduce(np.ones(n, np.float32), timeout=1)
                    ),
                )
                assert all(isinstance(r, np.ndarray | RuntimeFault) for r in results), (
                    results
                )
            lies += liar.lies
            survivors = form(made[:2], epoch=2 * turn + 2, timeout=30)
            assert together(survivors, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
        assert not tally.errors, tally.errors[0]
    assert lies > 15


def test_an_epoch_that_no_frame_can_name_is_refused() -> None:
    with endpoints(1) as made, pytest.raises(ConfigError, match="64 bits"):
        made[0].form(1 << 64, [made[0].address], 0)


def test_news_of_a_loss_is_never_too_long_to_be_taken() -> None:
    """Each byte that is no text becomes three: what is passed on is cut again."""
    with endpoints(3) as made:
        comms = form(made)
        group = comms[2]._group
        bad = Frame(Kind.LOST, step=1, payload=b"\xff" * (16 << 10))
        made[2].loop.ask(lambda: group.links[0].send(bad))
        faults = together(
            comms[:1] + comms[2:],
            lambda c: outcome(lambda: c.all_reduce(np.ones(3), timeout=10)),
        )
        for fault in faults:
            assert isinstance(fault, PeerLost)
            assert fault.peer == 1


@pytest.mark.parametrize("payload", [b"", bytes(16 << 10)])
def test_what_waits_behind_a_payload_that_never_comes_is_bounded(payload) -> None:
    loop = Loop("pcp-behind")
    victim = frame_fuzzer.Victim(loop, shared=False, striped=True)
    loop.ask(victim.admit)
    try:
        pending = victim.comm.all_reduce_async(np.ones(30_000), timeout=60)
        announced = Frame(Kind.SHARED, payload=bytes(4) + (1 << 20).to_bytes(4, "big"))
        more = Frame(Kind.BREAK if payload else Kind.PING, payload=payload)
        raw = frame_fuzzer.pack_header(more, frame_fuzzer.EPOCH) + payload
        with resident_growth(256 * MIB), contextlib.suppress(OSError):
            victim.sock.sendall(frame_fuzzer.pack_header(announced, frame_fuzzer.EPOCH))
            victim.sock.sendall(announced.payload)
            for _ in range(80):
                victim.sock.sendall(raw * 1000 if not payload else raw * 100)
        assert "never sent what it announced" in str(
            outcome(lambda: pending.result(30))
        )
    finally:
        victim.close()
        loop.close()


def test_a_formation_that_fails_leaves_no_connection() -> None:
    with endpoints(2) as made:
        addresses = [end.address for end in made]
        fault = outcome(lambda: made[1].form(1, addresses, 1, timeout=0.4))
        assert isinstance(fault, Timeout)
        eventually(lambda: not made[0]._ahead)


def test_an_empty_segment_is_not_an_arrival() -> None:
    """Zero bytes where data belongs: an error, never a sum of what was there."""
    loop = Loop("pcp-empty")
    victim = frame_fuzzer.Victim(loop, shared=False)
    loop.ask(victim.admit)
    try:
        first = frame_fuzzer.scripts()["ring"][0]
        pending = frame_fuzzer.OPERATIONS["ring"](victim.comm)
        loop.ask(lambda: None)
        for frame in (first, *[Frame(Kind.DATA)] * 40, Frame(Kind.DONE)):
            victim.sock.sendall(frame_fuzzer.pack_header(frame, frame_fuzzer.EPOCH))
            victim.sock.sendall(frame.payload)
        assert "data without data" in str(outcome(lambda: pending.result(30)))
    finally:
        victim.close()
        loop.close()


def test_the_endpoint_says_so_when_a_proof_has_no_nonce() -> None:
    with (
        Endpoint.listen(key="a key that is long") as end,
        frame_fuzzer.watched() as tally,
    ):
        knock(end, random.Random(1), 50, tally, [[Frame(Kind.AUTH)]])
