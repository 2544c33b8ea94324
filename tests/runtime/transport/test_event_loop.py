"""The loop: order, timers, faults in handlers, stalls."""

import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.worlds.communicators import eventually

from pcp.errors import CollectiveAborted, ProtocolError, Timeout
from pcp.runtime.transport.event_loop import Loop


@pytest.fixture
def loop():
    made = Loop("test")
    yield made
    made.close()


def test_calls_run_in_order_in_one_thread(loop):
    seen: list[tuple[int, str]] = []
    for i in range(500):
        loop.call(lambda i=i: seen.append((i, threading.current_thread().name)))
    assert loop.ask(lambda: len(seen)) == 500
    assert seen == [(i, "test") for i in range(500)]


def test_calls_from_many_threads_all_arrive(loop):
    seen: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: [loop.call(seen.append, 1) for _ in range(2000)]
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loop.ask(lambda: len(seen)) == 16_000


def test_ask_brings_values_and_exceptions_back(loop):
    assert loop.ask(lambda: 41 + 1) == 42
    assert loop.ask(lambda: loop.ask(lambda: "nested")) == "nested"
    with pytest.raises(ZeroDivisionError):
        loop.ask(lambda: 1 / 0)
    with pytest.raises(Timeout, match="did not answer"):
        loop.ask(lambda: time.sleep(0.3), timeout=0.05)


def test_timers_fire_in_time_order_and_can_be_cancelled(loop):
    seen: list[str] = []

    def arm():
        loop.later(0.10, lambda: seen.append("second"))
        loop.later(0.05, lambda: seen.append("first"))
        loop.later(0.01, lambda: seen.append("never")).cancel()

    loop.ask(arm)
    eventually(lambda: len(seen) == 2)
    assert seen == ["first", "second"]


def test_cancelled_timers_are_not_kept(loop):
    """An operation has one for its whole patience, and is over much earlier."""

    def arm():
        for _ in range(20_000):
            loop.later(float("inf"), pytest.fail).cancel()
        loop.later(0.01, seen.set)

    seen = threading.Event()
    loop.ask(arm)
    assert loop.ask(lambda: len(loop._timers)) < 1000
    assert seen.wait(30)


def test_who_asks_a_loop_that_has_ended_is_told():
    loop = Loop("ended")
    began, busy = threading.Event(), threading.Event()
    loop.call(lambda: (began.set(), busy.wait(5)))
    assert began.wait(30)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(loop.ask, lambda: None)
        eventually(lambda: bool(loop._asked))
        loop.close(timeout=0)
        busy.set()
        assert isinstance(early.exception(5), CollectiveAborted)
    with pytest.raises(CollectiveAborted, match="has ended"):
        loop.ask(lambda: None, timeout=3)


def test_a_fault_in_one_handler_stops_nothing(loop, caplog):
    def fault():
        raise ProtocolError("nonsense")

    with caplog.at_level(logging.WARNING, logger="pcp.runtime"):
        loop.call(fault)
        loop.call(lambda: 1 / 0)
        assert loop.ask(lambda: "alive") == "alive"
    assert "nonsense" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_sockets_wake_it_and_are_closed_with_it():
    loop = Loop("sockets")
    left, right = socket.socketpair()
    got = threading.Event()

    def ready(_events):
        right.recv(10)
        got.set()

    loop.ask(lambda: loop.watch(right, 1, ready))
    left.send(b"x")
    assert got.wait(30)
    loop.close()
    assert right.fileno() == -1
    left.close()


def test_a_loop_that_slept_does_not_blame_its_peers(loop):
    assert not loop.suspended
    loop.call(time.sleep, 3.2)
    eventually(lambda: loop.suspended, 8)


def test_who_expects_news_watches_for_a_moment_and_then_sleeps(loop):
    pauses: list[float] = []
    select = loop._select
    counted = lambda pause: (pauses.append(pause), select(pause))[1]  # noqa: E731
    loop.ask(lambda: setattr(loop, "_select", counted))
    loop.ask(lambda: setattr(loop, "expecting", 1))
    eventually(lambda: sum(pause > 0 for pause in pauses) > 2)
    assert pauses.count(0) > 2
    assert loop.ask(lambda: "awake at once") == "awake at once"


FORKED = """
import os
import numpy as np
from pcp.errors import UsageError
from pcp.runtime import Communicator

comms = Communicator.in_process(2, timeout=60)
pending = comms[1].all_reduced_async(np.ones(9))
if not (child := os.fork()):
    # As if another thread had it at the fork.
    comms[0]._context.pool._arena._lock.acquire()
    refused = 0
    for call in (
        lambda: comms[0].all_reduced(np.ones(9)),
        lambda: comms[0].all_reduced(np.ones(1 << 17), algorithm="ring"),
        comms[0].barrier,
        lambda: comms[0].abort("no"),
        comms[0].metrics,
    ):
        try:
            call()
        except UsageError as error:
            refused += "do not survive a fork" in str(error)
    for comm in comms:
        comm.close()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) >= 4
assert (comms[0].all_reduced(np.ones(9)) == 2).all()
assert (pending.result(20) == 2).all()
for comm in comms:
    comm.close()
print("apart")
"""


def test_a_forked_process_is_told_that_it_has_no_part_in_the_group():
    """It lacks the thread that would answer: it would wait beyond every deadline."""
    command = [sys.executable, "-c", FORKED]
    ended = subprocess.run(command, capture_output=True, timeout=60)
    assert ended.stdout == b"apart\n", ended.stderr
