"""Signals of commands: none is lost, and none waits for a lock its own thread has."""

import os
import signal
import subprocess
import sys

import pytest
from helpers.present import present

_HOLDS = """
import os, signal, sys, threading
from pcp.tools.support.signals import stop_on_signals
lock, over = threading.Lock(), []
both = threading.Event()
def stop(number):
    with lock:
        over.append(number)
        if len(over) == 2:
            both.set()
stop_on_signals(stop)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
assert both.wait(20)
print(sorted(over))
"""
_RANKS = """
import subprocess, sys
from pcp.tools.support import processes
from pcp.tools.support.command import run
def start(rank, address):
    code = "import os, time; print('at', os.getpid(), flush=True); time.sleep(60)"
    child = [sys.executable, "-c", code]
    return subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
def work(argv):
    with processes.ranks(1, start, "at ") as running:
        print(running[0].pid, flush=True)
        running[0].wait()
sys.exit(run("x", work, []))
"""
_WAITS = """
import signal, sys, threading, time
from pcp.tools.support.command import run
from pcp.tools.support.signals import in_order
def work(argv):
    never = threading.Event()
    def late():
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        never.wait()
    threading.Thread(target=late, daemon=True).start()
    never.wait()
sys.exit(run("x", in_order(work), []))
"""


def test_a_signal_that_misses_the_main_thread_ends_its_wait() -> None:
    done = subprocess.run([sys.executable, "-c", _WAITS], timeout=60)
    assert done.returncode == 128 + signal.SIGTERM


def test_a_signal_comes_while_its_lock_is_held() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOLDS], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{sorted([int(signal.SIGINT), int(signal.SIGTERM)])}\n", (
        done.stderr
    )


def test_a_terminated_command_leaves_no_ranks() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RANKS], stdout=subprocess.PIPE, text=True
    ) as command:
        try:
            rank = int(present(command.stdout).readline())
            command.terminate()
            assert command.wait(30) == 128 + signal.SIGTERM
        finally:
            command.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(rank, 0)


_HANGS_UP = """
import os, signal, sys
from pcp.tools.support.signals import at_once, on_signals
from pcp.tools.support.command import run
def work(argv):
    with on_signals(at_once):
        os.kill(os.getpid(), signal.SIGHUP)
    print("went on")
sys.exit(run("x", work, []))
"""


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [(signal.SIG_DFL, 128 + signal.SIGHUP, ""), (signal.SIG_IGN, 0, "went on\n")],
)
def test_a_terminal_that_closes(before: signal.Handlers, code: int, said: str) -> None:
    """It ends a command as Ctrl-C does; under `nohup` nothing does."""
    mine = signal.signal(signal.SIGHUP, before)  # a command begins with its caller's
    try:
        done = subprocess.run(
            [sys.executable, "-c", _HANGS_UP],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        signal.signal(signal.SIGHUP, mine)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
