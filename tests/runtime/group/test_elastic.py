"""Elastic groups over real connections: joins, deaths, and a coordinator that dies."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.worlds.communicators import eventually, outcome, together

from pcp.errors import PeerLost, ProtocolError, Timeout, UsageError
from pcp.runtime.communicator.communicator import Communicator, ElasticCommunicator
from pcp.runtime.group.coordinator import Coordinator

SIZE = 300_000


def join(
    where: str, name: str, timeout: float = 20.0, **options: Any
) -> ElasticCommunicator:
    return Communicator.join(where, name=name, timeout=timeout, **options)


@contextmanager
def group(*names: str, **options) -> Iterator[tuple[Coordinator, list]]:
    """A coordinator and its first members, by rank."""
    with ExitStack() as stack:
        where = stack.enter_context(
            Coordinator.listen("127.0.0.1:0", first=len(names), silence=2)
        )
        comms = together(names, lambda name: join(where.address, name, **options))
        for comm in comms:
            stack.callback(comm.close)
        # What joining already did.
        assert together(comms, lambda c: c.update_membership()) == [True] * len(comms)
        yield where, sorted(comms, key=lambda comm: comm.rank)


def name(comm: ElasticCommunicator) -> str:
    return comm.names[comm.rank]


def summed(comms: list, size: int = 3) -> list[float]:
    """What an all_reduce of powers of two by name gives on each."""

    def call(comm: ElasticCommunicator) -> float:
        array = np.full(size, 2.0 ** (ord(name(comm)) - ord("a")))
        return float(comm.all_reduce(array)[-1])

    return together(comms, call)


def test_members_join_leave_and_find_each_other() -> None:
    with group("a", "b") as (where, comms), ThreadPoolExecutor(1) as pool:
        assert summed(comms) == [3, 3]
        assert not any(comm.are_peers_pending() for comm in comms)
        late = pool.submit(lambda: join(where.address, "c"))
        eventually(lambda: where.status()["waiting"] == ["c"])
        assert all(comm.are_peers_pending() for comm in comms)
        assert together(comms, lambda c: c.update_membership()) == [True, True]
        comms.append(late.result(30))
        assert comms[2].update_membership()
        assert [c.world_size for c in comms] == [3, 3, 3]
        assert len({c.epoch for c in comms}) == 1
        assert summed(comms, SIZE) == [7, 7, 7]
        assert together(comms, lambda c: c.update_membership()) == [False] * 3
        comms[0].close()
        rest = comms[1:]
        assert together(rest, lambda c: c.update_membership()) == [True, True]
        assert len(set(summed(rest))) == 1
        comms[2].close()
        assert comms[1].update_membership()
        assert comms[1].world_size == 1


def test_a_crash_is_survived_with_every_input_once() -> None:
    with group("a", "b", "c") as (_, comms):
        comms[1]._crash()
        rest = [comms[0], comms[2]]

        def step(comm: ElasticCommunicator) -> float:
            array = np.full(SIZE, 2.0 ** (ord(name(comm)) - ord("a")))
            before = array.copy()
            fault = outcome(lambda: comm.all_reduce(array))
            assert isinstance(fault, PeerLost)
            assert np.array_equal(array, before)
            return float(comm.retry(lambda c: c.all_reduce(array))[0])

        expected = sum(2.0 ** (ord(name(c)) - ord("a")) for c in rest)
        assert together(rest, step) == [expected, expected]


def test_newcomers_wait_while_a_step_is_retried() -> None:
    """One renewal brings the dead out and newcomers in; nobody waits for another."""
    seen = []

    def step(comm: ElasticCommunicator) -> float:
        comm.update_membership()
        return float(comm.all_reduce(np.ones(SIZE))[0])

    with group("a", "b", "c") as (where, comms), ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: join(where.address, "d"))
        eventually(lambda: where.status()["waiting"] == ["d"])

        def survive(comm: ElasticCommunicator) -> float:
            fault = outcome(lambda: comm.all_reduce(np.ones(SIZE)))
            assert isinstance(fault, PeerLost)
            return comm.retry(step, timeout=20)

        def enter(_) -> float:
            comm = late.result(20)
            seen.append(comm)
            return comm.retry(step, timeout=20)

        comms[1]._crash()
        calls = [(survive, comms[0]), (survive, comms[2]), (enter, None)]
        try:
            assert together(calls, lambda c: c[0](c[1])) == [3, 3, 3]
            comms[2]._crash()
            rest = [comms[0], *seen]
            got = together(rest, lambda c: c.retry(step, timeout=20))
            assert got == [2, 2]
        finally:
            for comm in seen:
                comm.close()


def test_deaths_down_to_one() -> None:
    with group("a", "b", "c", "d") as (_, comms):
        while len(comms) > 1:
            comms.pop()._crash()
            got = together(
                comms, lambda c: c.retry(lambda c: c.all_reduce(np.ones(SIZE)))[0]
            )
            assert got == [len(comms)] * len(comms)


def test_a_restarted_coordinator_finds_the_group_again() -> None:
    with group("a", "b") as (where, comms), ThreadPoolExecutor(1) as pool:
        address = where.address
        where.close()
        assert summed(comms) == [3, 3]  # nobody needs it for that
        with Coordinator.listen(address, first=99, silence=2) as again:
            eventually(lambda: len(again.status()["members"]) == 2)
            before = comms[0].epoch
            assert together(comms, lambda c: c.update_membership()) == [False] * 2
            late = pool.submit(lambda: join(address, "c"))
            eventually(lambda: again.status()["waiting"] == ["c"])
            together(comms, lambda c: c.update_membership())
            comms.append(late.result(30))
            assert comms[2].update_membership()
            assert comms[0].epoch > before
            assert summed(comms) == [7, 7, 7]
            for comm in comms:
                comm.close()


def test_a_death_while_the_coordinator_is_away() -> None:
    settled = threading.Event()
    with group("a", "b", "c") as (where, comms):
        address = where.address
        where.close()
        comms[2]._crash()
        rest = comms[:2]

        def back() -> None:
            time.sleep(0.2)
            with Coordinator.listen(address, silence=1) as again:
                eventually(lambda: len(again.status()["members"]) == 2, 20)
                settled.wait(20)

        thread = threading.Thread(target=back)
        thread.start()
        try:
            got = together(
                rest, lambda c: c.retry(lambda c: c.all_reduce(np.ones(SIZE)), 20)[0]
            )
            assert got == [2, 2]
        finally:
            settled.set()
            thread.join()


def test_members_that_do_nothing_are_heard_of_however_short_the_silence() -> None:
    """They only answer: a coordinator asks several times before they are dead."""
    with Coordinator.listen("127.0.0.1:0", silence=1.0, heartbeat=5.0) as where:
        with join(where.address, "a") as comm:
            time.sleep(2.5)
            assert where.status()["members"] == ["a"]
            assert comm._renewal.coordination.fault is None


def test_without_a_coordinator_joining_and_renewing_end_with_an_error() -> None:
    with pytest.raises(PeerLost, match="no coordinator"):
        join("127.0.0.1:9", "a", timeout=0.5)
    with group("a", patience=0.5) as (where, comms):
        where.close()
        with pytest.raises((PeerLost, Timeout)):
            comms[0].update_membership(timeout=5)


def test_the_first_group_says_who_is_there_and_how_many_it_wants() -> None:
    with Coordinator.listen("127.0.0.1:0", first=3) as where:

        def enter(name: str) -> str:
            return str(outcome(lambda: join(where.address, name, timeout=1)))

        told = together(("a", "b"), enter)
    full = "the first group wants 3 members, and 2 came in time: "
    assert any(said in (f"{full}a, b", f"{full}b, a") for said in told), told
    assert all("wants 3 members" in said for said in told)


def test_a_name_is_taken_once() -> None:
    with group("a") as (where, _), pytest.raises(ProtocolError, match="named a"):
        join(where.address, "a", timeout=5)


def test_a_name_is_free_again_when_its_member_is_dead() -> None:
    with group("a", "b") as (where, comms):
        first, second = map(name, comms)
        comms[1]._crash()
        eventually(lambda: where.status()["members"] == [first])
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(join, where.address, second)
            eventually(lambda: where.status()["waiting"] == [second])
            assert comms[0].update_membership(timeout=10)
            with again.result(30) as comm:
                comm.update_membership()
                assert summed([comms[0], comm]) == [3, 3]


def test_renewing_waits_for_all_and_gives_up_in_time() -> None:
    with group("a", "b") as (_, comms):
        with pytest.raises(Timeout, match="not all members"):
            comms[0].update_membership(timeout=0.3)
        assert together(comms, lambda c: c.update_membership()) == [False, False]
        assert summed(comms) == [3, 3]


def test_a_go_that_comes_too_late_is_followed_by_the_next_call() -> None:
    with group("a", "b") as (where, comms), ThreadPoolExecutor(2) as pool:
        coordination = comms[0]._renewal.coordination
        agent, late = coordination.agent, threading.Event()

        def hear(what: str, facts: dict) -> None:
            if what == "go" and not late.is_set():
                news.append((what, facts))
            else:
                plain(what, facts)

        news: list[tuple[str, dict]] = []
        plain, agent.hear = agent.hear, hear
        third = pool.submit(join, where.address, "c")
        eventually(lambda: where.status()["waiting"] == ["c"])
        second = pool.submit(comms[1].update_membership)
        with pytest.raises(Timeout):
            comms[0].update_membership(timeout=1)
        with third.result(30) as newcomer:
            assert second.result(30)
            late.set()
            coordination._loop.ask(lambda: [plain(*said) for said in news])
            assert comms[0].update_membership(timeout=5)
            newcomer.update_membership()
            assert summed([*comms, newcomer]) == [7, 7, 7]


def test_an_answer_that_crosses_the_end_of_patience_counts() -> None:
    """The others go on: who voted anew would wait for them, and they for it."""
    with group("a", "b") as (_, comms), ThreadPoolExecutor(2) as pool:
        coordination = comms[0]._renewal.coordination
        agent, plain = coordination.agent, coordination.agent.hear
        news: list[tuple[str, dict]] = []

        def hear(what: str, facts: dict) -> None:
            news.append((what, facts))
            if what == "unvoted":
                for said in news:
                    plain(*said)

        agent.hear = hear
        second = pool.submit(comms[1].update_membership)
        assert comms[0].update_membership(timeout=0.5) is False
        agent.hear = plain
        assert second.result(30) is False
        assert [what for what, _ in news] == ["go", "unvoted"]
        assert summed(comms) == [3, 3]


def test_renewing_under_way_is_refused() -> None:
    with group("a", "b") as (_, comms):
        pending = comms[0].all_reduce_async(np.ones(4))
        with pytest.raises(UsageError, match="under way"):
            comms[0].update_membership()
        comms[1].all_reduce(np.ones(4))
        assert pending.result(30)[0] == 2


def test_nonsense_to_the_coordinator_harms_nobody() -> None:
    with group("a", "b") as (where, comms):
        import socket

        host, port = where.address.split(":")
        for junk in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(500), b"pcpR" + bytes(60)):
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                sock.sendall(junk)
        assert summed(comms) == [3, 3]
        assert together(comms, lambda c: c.update_membership()) == [False, False]


# Real processes.


class Process:
    """`elastic_process`, and what it said."""

    def __init__(self, at: str, name: str, bit: int, steps: int, size: int) -> None:
        script = Path(__file__).parents[2] / "helpers" / "worlds" / "elastic_process.py"
        request = {"at": at, "name": name, "bit": bit, "steps": steps, "size": size}
        self.name, self.bit = name, bit
        self.lines: list[dict] = []
        self.victim = False
        self.child = subprocess.Popen(
            [sys.executable, str(script), json.dumps(request)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(json.loads(line))

    def wait(self, seconds: float) -> int:
        code = self.child.wait(seconds)
        self._reader.join(30)
        return code

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
            self.child.wait(30)
        self._reader.join(30)
        assert self.child.stdout is not None
        self.child.stdout.close()


def churn(seed: int, steps: int, members: int, victims: int) -> None:
    """Members are killed or stopped while others join; the survivors agree."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        where = stack.enter_context(
            Coordinator.listen("127.0.0.1:0", first=members, silence=2)
        )
        made = []
        for bit in range(members + victims):
            if bit == members:
                eventually(lambda: len(made[0].lines) > 2, 60)
            made.append(Process(where.address, f"m{bit}", bit, steps, 150_000))
            stack.callback(made[-1].stop)
        for victim in rng.sample(made[:members], victims):
            done = len(made[members].lines)
            eventually(lambda done=done: len(made[members].lines) > done + 1, 60)
            time.sleep(rng.uniform(0, 0.05))
            how = rng.choice([signal.SIGKILL, signal.SIGSTOP])
            victim.child.send_signal(how)
            victim.victim = True
        alive = [p for p in made if not p.victim]
        for process in alive:
            assert process.wait(90) == 0
        said: dict[tuple[int, int], set] = {}
        for process in made:
            for line in process.lines:
                if "step" in line:
                    bits = sum(2.0 ** int(n[1:]) for n in line["names"])
                    assert line["sum"] == bits
                    where_it_was = (line["step"], line["epoch"])
                    said.setdefault(where_it_was, set()).add(line["sum"])
        assert all(len(values) == 1 for values in said.values())
        # Every step happened in one epoch only: nothing was counted twice.
        by_step: dict[int, set[int]] = {}
        for step, epoch in said:
            by_step.setdefault(step, set()).add(epoch)
        assert sorted(by_step) == list(range(1, steps + 1))
        assert all(len(epochs) == 1 for epochs in by_step.values()), by_step
        assert len({p.lines[-1]["total"] for p in alive}) == 1


@pytest.mark.timeout(240)
def test_killed_and_stopped_members_and_newcomers() -> None:
    churn(seed=1, steps=100, members=3, victims=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 22))
def test_churn(seed: int) -> None:
    churn(seed, steps=400, members=3 + seed % 3, victims=2)
