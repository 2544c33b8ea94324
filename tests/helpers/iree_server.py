"""IREE as an oracle, kept away from the test's own process: it may crash.

A server process compiles each program and runs it in a forked child, so that a
program that writes out of bounds ends the child and nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

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


def _compile(text: str) -> bytes:
    import iree.compiler.tools as tools

    from pcp.compiler.targets import find

    return tools.compile_str(
        text,
        target_backends=["llvm-cpu"],
        input_type="stablehlo",
        extra_args=find("cpu:host").all_flags,
    )


def _evaluate(module: Any, name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    results = module[name](*arguments)
    if not isinstance(results, (tuple, list)):
        results = [results]
    return [np.array(r.to_host()) for r in results]


def _answers(text: str, calls: Calls) -> Iterator[list[np.ndarray] | str]:
    import iree.runtime as rt

    try:
        module = rt.load_vm_flatbuffer(_compile(text), driver="local-sync")
    except Exception as error:
        yield from [_message(error)] * len(calls)
        return
    for name, arguments in calls.items():
        try:
            yield _evaluate(module, name, arguments)
        except Exception as error:
            yield _message(error)


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:2000]}"


def _child(out: int, text: str, calls: Calls) -> None:
    import signal

    signal.alarm(DEADLINE_S + 2 * len(calls))
    with os.fdopen(out, "wb") as pipe:
        for answer in _answers(text, calls):
            _send(pipe, answer)
    os._exit(0)


def _collected(pipe: BinaryIO) -> list[Any]:
    found = []
    while (answer := _receive(pipe)) is not None:
        found.append(answer)
    return found


def _serve() -> None:
    import iree.compiler.tools
    import iree.runtime  # noqa: F401 - loaded once, before the forks

    import pcp.compiler.targets  # noqa: F401 - the same

    while (request := _receive(sys.stdin.buffer)) is not None:
        text, calls = request  # type: ignore[misc]
        receiving, sending = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(receiving)
            _child(sending, text, calls)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            answers = _collected(pipe)
        _, status = os.waitpid(pid, 0)
        ended = f"the process ended with status {status}"
        answers += [ended] * (len(calls) - len(answers))
        _send(sys.stdout.buffer, answers)


if __name__ == "__main__":
    _serve()
