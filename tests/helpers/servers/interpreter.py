"""The StableHLO reference interpreter, kept away from the test's own process.

It aborts the process on ops it does not know, and a process that has loaded jax
must not fork. So a server is started that holds the bindings only; it forks for
each request and answers with the results or with what killed the child.
"""

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

DEADLINE_S = 60


class InterpreterAborted(RuntimeError):
    """The interpreter could not run the program."""


class Interpreter:
    """A server process; use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "Interpreter":
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
        """The results of `@main` in `text`."""
        assert self._process.stdin
        assert self._process.stdout
        _send(self._process.stdin, (text, [np.asarray(a) for a in arguments]))
        answer = _receive(self._process.stdout)
        if isinstance(answer, str):
            raise InterpreterAborted(answer)
        return answer


def _send(pipe: BinaryIO, value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO) -> object | None:
    header = pipe.read(8)
    if len(header) < 8:
        return None
    return pickle.loads(pipe.read(struct.unpack("<Q", header)[0]))


def _evaluate(context: Any, text: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    from pcp.dialect.bindings import ir, stablehlo
    from pcp.dialect.context import parse

    module = parse(text, context)
    with context:
        types = module.body.operations[0].type.inputs
        inputs = [
            ir.DenseElementsAttr.get(np.ascontiguousarray(a), type=t)
            for a, t in zip(arguments, types, strict=True)
        ]
        results = stablehlo.eval_module(module, inputs)
        return [np.array(r).reshape(ir.ShapedType(r.type).shape) for r in results]


def _child(out: int, context: Any, text: str, arguments: list[np.ndarray]) -> None:
    import signal

    signal.alarm(DEADLINE_S)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        answer: object = _evaluate(context, text, arguments)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    with os.fdopen(out, "wb") as pipe:
        _send(pipe, answer)
    os._exit(0)


def _serve() -> None:
    from pcp.dialect.bindings import stablehlo
    from pcp.dialect.context import make_context

    context = make_context()  # made once: every child inherits it
    stablehlo.register_interpreter_dialect(context)  # for interpreter.run_parallel
    while (request := _receive(sys.stdin.buffer)) is not None:
        text, arguments = request  # type: ignore[misc]
        receiving, sending = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(receiving)
            _child(sending, context, text, arguments)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            answer = _receive(pipe)
        _, status = os.waitpid(pid, 0)
        if answer is None:
            answer = f"the interpreter's process ended with status {status}"
        _send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    _serve()
