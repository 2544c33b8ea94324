"""IREE as an oracle, kept away from the test's own process: it may crash.

A server process compiles each program and runs it in a forked child, so that a
program that writes out of bounds ends the child and nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from helpers.interpreter import _receive, _send

DEADLINE_S = 60


class IreeFailed(RuntimeError):
    """IREE refused the program, or crashed on it."""


class Iree:
    """A server process; use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.iree_server"],
            cwd=Path(__file__).parent.parent,
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
        assert self._process.stdin
        assert self._process.stdout
        _send(self._process.stdin, (text, [np.asarray(a) for a in arguments]))
        answer = _receive(self._process.stdout)
        if isinstance(answer, list):
            return answer
        raise IreeFailed(str(answer))


def _evaluate(text: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    import iree.compiler.tools as tools
    import iree.runtime as rt

    compiled = tools.compile_str(
        text,
        target_backends=["llvm-cpu"],
        input_type="stablehlo",
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )
    module = rt.load_vm_flatbuffer(compiled, driver="local-sync")
    results = module.main(*arguments)
    if not isinstance(results, (tuple, list)):
        results = [results]
    return [np.array(r.to_host()) for r in results]


def _child(out: int, text: str, arguments: list[np.ndarray]) -> None:
    import signal

    signal.alarm(DEADLINE_S)
    try:
        answer: object = _evaluate(text, arguments)
    except Exception as error:
        answer = f"{type(error).__name__}: {str(error)[:2000]}"
    with os.fdopen(out, "wb") as pipe:
        _send(pipe, answer)
    os._exit(0)


def _serve() -> None:
    import iree.compiler.tools
    import iree.runtime  # noqa: F401 - loaded once, before the forks

    while (request := _receive(sys.stdin.buffer)) is not None:
        text, arguments = request  # type: ignore[misc]
        receiving, sending = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(receiving)
            _child(sending, text, arguments)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            answer = _receive(pipe)
        _, status = os.waitpid(pid, 0)
        if answer is None:
            answer = f"the process ended with status {status}"
        _send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    _serve()
