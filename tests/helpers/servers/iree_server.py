"""IREE as an oracle, kept away from the test's own process: it may crash.

A server process compiles each program, in a process of the compiler's, and runs it
in a forked child, so that a program that writes out of bounds ends the child and
nothing else. The last few modules are kept.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from helpers.servers.interpreter import _receive, _send

DEADLINE_S = 60


class IreeFailed(RuntimeError):
    """IREE refused the program, or crashed on it."""


class Iree:
    """A server process for one of pcp's CPU targets; use as a context manager."""

    def __init__(self, target: str = "cpu:host") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.servers.iree_server", target],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "Iree":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, text: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of `@main` in `text`, on the CPU."""
        (answer,) = self.run_all(text, {"main": arguments})
        if isinstance(answer, str):
            raise IreeFailed(answer)
        return answer

    def run_all(
        self, text: str, calls: Mapping[str, Sequence[np.ndarray]]
    ) -> list[list[np.ndarray] | str]:
        """The results of several functions of one module, or what went wrong.

        All share the fate of a module that is refused; those after one that
        crashes share its end.
        """
        assert self._process.stdin
        assert self._process.stdout
        plain = {name: [np.asarray(a) for a in given] for name, given in calls.items()}
        _send(self._process.stdin, (text, plain))
        answer = _receive(self._process.stdout)
        assert isinstance(answer, list)
        return answer


Calls = dict[str, list[np.ndarray]]


@lru_cache(maxsize=4)
def _compiled(text: str, target: str) -> bytes | str:
    """The module, or why there is none; iree-compile is a process of its own."""
    from pcp.compiler.iree import compile_text
    from pcp.compiler.targets import find
    from pcp.errors import CompileError

    flags = ("--iree-hal-target-backends=llvm-cpu", *find(target).all_flags)
    try:
        return compile_text(text, flags, timeout=5 * DEADLINE_S)
    except CompileError as error:
        return f"iree-compile: {error}"


def _evaluate(module: Any, name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    results = module[name](*arguments)
    if not isinstance(results, (tuple, list)):
        results = [results]
    return [np.array(r.to_host()) for r in results]


def _answers(compiled: bytes, calls: Calls) -> Iterator[list[np.ndarray] | str]:
    import iree.runtime as rt

    module = rt.load_vm_flatbuffer(compiled, driver="local-sync")
    for name, arguments in calls.items():
        try:
            yield _evaluate(module, name, arguments)
        except Exception as error:
            yield f"{type(error).__name__}: {str(error)[:2000]}"


def _child(out: int, compiled: bytes, calls: Calls) -> None:
    import signal

    signal.alarm(DEADLINE_S + 2 * len(calls))
    with os.fdopen(out, "wb") as pipe:
        for answer in _answers(compiled, calls):
            _send(pipe, answer)
    os._exit(0)


def _collected(pipe: BinaryIO) -> list[Any]:
    found = []
    while (answer := _receive(pipe)) is not None:
        found.append(answer)
    return found


def _run(compiled: bytes, calls: Calls) -> list[Any]:
    """What a forked child answers for each call, or what it died of."""
    receiving, sending = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(receiving)
        _child(sending, compiled, calls)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        answers = _collected(pipe)
    _, status = os.waitpid(pid, 0)
    ended = f"the process ended with status {status}"
    return [*answers, *[ended] * (len(calls) - len(answers))]


def _serve(target: str) -> None:
    import iree.runtime  # noqa: F401 - loaded once, before the forks

    while (request := _receive(sys.stdin.buffer)) is not None:
        text, calls = request  # type: ignore[misc]
        compiled = _compiled(text, target)
        refused = isinstance(compiled, str)
        answers = [compiled] * len(calls) if refused else _run(compiled, calls)
        _send(sys.stdout.buffer, answers)


if __name__ == "__main__":
    _serve(sys.argv[1])
