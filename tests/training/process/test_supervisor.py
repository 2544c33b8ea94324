"""Supervision: restarts, pauses, giving up, and the death of the supervisor."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
from helpers.servers.processes import Processes, alive
from helpers.worlds.communicators import eventually

from pcp.errors import RuntimeFault
from pcp.training.process.node_manager import NodeManager
from pcp.training.process.supervisor import HOPELESS, Policy, Supervisor, spawner


class Clock:
    """Time that moves only when somebody lives or waits."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Script:
    """Children that live and end as scripted: (seconds, exit code)."""

    def __init__(self, clock: Clock, *lives: tuple[float, int]) -> None:
        self.clock, self.lives = clock, list(lives)
        self.commands, self.pauses, self.pid = [], [], 1

    def spawn(self, command: Sequence[str]) -> "Script":
        self.commands.append(list(command))
        return self

    def wait(self, timeout: float | None = None) -> int:
        seconds, code = self.lives.pop(0)
        self.clock.now += seconds
        return code

    def send_signal(self, sig: int) -> None:
        raise AssertionError("nobody asked for a signal")

    def kill(self) -> None:
        raise AssertionError("nobody asked for its end")


def _supervise(*lives, policy=None, monkeypatch, **options):
    clock = Clock()
    script, lines = Script(clock, *lives), []
    supervisor = Supervisor(
        ["child"],
        log=lines.append,
        spawn=script.spawn,
        clock=clock,
        policy=policy,
        **options,
    )

    def wait(pause):
        script.pauses.append(pause)
        clock.now += pause
        return False

    monkeypatch.setattr(supervisor._stopping, "wait", wait)
    return supervisor, script, lines


def test_pauses_double_until_a_child_settles(monkeypatch):
    lives = [(1, 1), (1, -9), (1, 1), (20, 1), (1, 1), (1, 0)]
    supervisor, script, lines = _supervise(*lives, monkeypatch=monkeypatch)
    assert supervisor.run() == 0
    assert script.pauses == pytest.approx([0.1, 0.2, 0.4, 0.1, 0.2])
    assert supervisor.restarts == 5
    assert "killed by SIGKILL" in lines[1]


def test_a_child_that_cannot_be_started_is_tried_again(monkeypatch):
    supervisor, script, lines = _supervise((1, 0), monkeypatch=monkeypatch)
    tries = iter([OSError(11, "no more processes")])

    def spawn(command):
        for error in tries:
            raise error
        return script.spawn(command)

    monkeypatch.setattr(supervisor, "_spawn", spawn)
    assert supervisor.run() == 0
    assert supervisor.restarts == 1
    assert lines[0] == "the child cannot be started: no more processes"


@pytest.mark.parametrize("code", [0, 2, HOPELESS])
def test_some_codes_end_it(monkeypatch, code):
    supervisor, script, _ = _supervise((1, code), monkeypatch=monkeypatch)
    assert supervisor.run() == code
    assert len(script.commands) == 1


def test_a_crash_loop_ends_with_an_error(monkeypatch):
    policy = Policy(crashes=4, within=60)
    supervisor, script, _ = _supervise(
        *[(0.5, 1)] * 4, policy=policy, monkeypatch=monkeypatch
    )
    with pytest.raises(RuntimeFault, match="4 crashes within 60 s"):
        supervisor.run()
    assert len(script.commands) == 4


def test_slow_crashes_are_no_loop(monkeypatch):
    policy = Policy(crashes=4, within=60, settled=10)
    supervisor, _, _ = _supervise(
        *[(30, 1)] * 10, (1, 0), policy=policy, monkeypatch=monkeypatch
    )
    assert supervisor.run() == 0
    assert supervisor.restarts == 10


def test_a_restart_may_have_another_command_line(monkeypatch):
    supervisor, script, _ = _supervise(
        (1, 1),
        (1, 1),
        (1, 0),
        monkeypatch=monkeypatch,
        restarted=lambda command: [*command, "--resume"],
    )
    supervisor.run()
    assert script.commands == [["child"], ["child", "--resume"], ["child", "--resume"]]


def test_a_real_child_is_restarted_and_stopped():
    lines = []
    script = "import time; time.sleep(60)"
    supervisor = Supervisor(
        [sys.executable, "-c", script], log=lines.append, spawn=spawner()
    )
    manager_thread = _thread(supervisor.run)
    first = _child_of(supervisor)
    os.kill(first, signal.SIGKILL)
    second = _child_of(supervisor, other_than=first)
    supervisor.stop()
    manager_thread.join(30)
    assert not manager_thread.is_alive()
    assert second != first
    assert any("SIGKILL" in line for line in lines)


def _thread(work):
    import threading

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _child_of(supervisor: Supervisor, other_than: int | None = None) -> int:
    def found() -> int:
        child = supervisor.child
        return child.pid if child and child.pid != other_than else 0

    return eventually(found, 10)


def test_a_node_manager_keeps_each_slot_alive():
    lines = []
    script = "import sys; print(sys.argv); sys.exit(0)"
    manager = NodeManager(
        3,
        lambda slot: [sys.executable, "-c", script, str(slot)],
        log=lines.append,
        spawn=spawner(stdout=subprocess.DEVNULL),
        stagger=0.0,
    )
    manager.start()
    assert manager.wait(20)
    manager.result()


def test_a_slot_that_gives_up_is_reported():
    manager = NodeManager(
        2,
        lambda slot: [sys.executable, "-c", f"import sys; sys.exit({4 * slot})"],
        log=lambda line: None,
        spawn=spawner(),
        policy=Policy(first_pause=0.01, crashes=2),
        stagger=0.0,
    )
    manager.start()
    assert manager.wait(20)
    with pytest.raises(RuntimeFault, match="worker 1 gave up"):
        manager.result()


def test_a_slot_that_would_fail_again_is_started_once():
    lines = []
    manager = NodeManager(
        1,
        lambda slot: [sys.executable, "-c", f"import sys; sys.exit({HOPELESS})"],
        log=lines.append,
        spawn=spawner(),
    )
    manager.start()
    assert manager.wait(20)
    assert manager.supervisors[0].restarts == 0
    assert "exit code 3: it cannot work here" in lines[0]
    assert lines[0].endswith("it is not started again")
    with pytest.raises(RuntimeFault, match="worker 0 ended with exit code 3"):
        manager.result()


def test_a_worker_dies_with_its_supervisor():
    with Processes() as processes:
        supervisor = processes.start(
            "pcp.tools.cli", "supervise", "--", "worker", "--connect", "127.0.0.1:1"
        )
        line = supervisor.wait_for("started for")
        child = int(line.split("process ")[1].split()[0])
        supervisor.signal(signal.SIGKILL)
        eventually(lambda: not alive(child), 10)
