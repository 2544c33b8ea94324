"""An oracle in a process of its own: requests and answers through its pipes.

The oracle may crash on a program, and a process that has loaded jax must not fork. So
the oracle's process holds its bindings and forks for each request; see `forked`.
"""

import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

TESTS = Path(__file__).parents[2]


class OracleProcess:
    """The process of a module of helpers, from the first request on.

    A request that is interrupted, by a test's time limit say, ends the process: its
    late answer would be taken for that of the next request, which starts another one.
    """

    def __init__(self, module: str) -> None:
        self._command = [sys.executable, "-W", "error", "-m", module]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def ask(self, request: object) -> Any:
        """The answer to a request; EOFError when the process ended instead."""
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        try:
            send(process.stdin, request)
            return receive(process.stdout)
        except BaseException:
            process.kill()
            self.stop()
            raise

    def stop(self) -> None:
        """End the process, which reads the end of its input."""
        if (process := self._process) is None:
            return
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command, cwd=TESTS, stdin=pipe, stdout=pipe)


def send(pipe: IO[bytes], value: object) -> None:
    """Write a value, which `receive` reads."""
    data = pickle.dumps(value)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next value; EOFError at the end."""
    header = pipe.read(8)
    if len(header) < 8:
        raise EOFError("the other process closed the pipe")
    return pickle.loads(pipe.read(struct.unpack("<Q", header)[0]))


def serve(answer: Callable[[Any], object]) -> None:
    """In the oracle's process: answer each request, until the client has gone.

    What it has imported no fork looks through for garbage, and so copies.
    """
    gc.collect()
    gc.freeze()
    while True:
        try:
            request = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(sys.stdout.buffer, answer(request))


def forked(
    values: Callable[[], Iterator[object]], seconds: int
) -> tuple[list[Any], int]:
    """The values that a forked child yields in so many seconds, and how it ended."""
    receiving, sending = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(receiving)
        signal.alarm(seconds)
        with os.fdopen(sending, "wb") as pipe:
            for value in values():
                send(pipe, value)
        os._exit(0)
    os.close(sending)
    found: list[Any] = []
    with os.fdopen(receiving, "rb") as pipe:
        try:
            while True:
                found.append(receive(pipe))
        except EOFError:
            pass
    _, status = os.waitpid(pid, 0)
    return found, status
