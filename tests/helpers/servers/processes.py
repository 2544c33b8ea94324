"""Child processes of tests: always killed by id, always waited for."""

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

TESTS = str(Path(__file__).parents[2])
_FIRST_PORT, _PORTS, _SPAN = 12_000, 100, 20_000
_drawn = itertools.count()


class Process:
    """A Python module run as a child; its lines are collected as they come."""

    def __init__(self, module: str, *arguments: object, **environment: str) -> None:
        path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
        self.lines: list[str] = []
        self.started = time.monotonic()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout
        for line in self.popen.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        """Everything it said."""
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float = 30.0) -> str:
        """The first line with `text`."""
        until = time.monotonic() + seconds
        while True:
            for line in list(self.lines):
                if text in line:
                    return line
            assert time.monotonic() < until, f"no {text!r} in:\n{self.text}"
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        code = self.popen.wait(seconds)
        self._reader.join(30)
        return code

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self.popen.kill()
        self.popen.wait(30)
        self._reader.join(30)
        if self.popen.stdout:
            self.popen.stdout.close()


class Processes:
    """A context in which started processes do not survive."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def start(self, module: str, *arguments: object, **environment: str) -> Process:
        """Start a module as a process."""
        process = Process(module, *arguments, **environment)
        self._all.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for process in self._all:
            process.kill()


def free_port() -> int:
    """A port that nobody listens on; each call of a process gives another one.

    It is below those that the system gives to connections and to who binds port 0: one
    of these might be taken between this call and its use. Processes with neighbouring
    ids, as those of one run of the tests, have ports of their own.
    """
    for _ in range(_PORTS):
        port = _FIRST_PORT + os.getpid() * _PORTS % _SPAN + next(_drawn) % _PORTS
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"all of this process's {_PORTS} ports are taken")


def alive(pid: int) -> bool:
    """Whether a process of this machine, not only a child of ours, still runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
