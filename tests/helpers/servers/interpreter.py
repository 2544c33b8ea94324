"""The StableHLO reference interpreter, in a process that forks for each program.

It aborts the process on ops that it does not know.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from helpers.servers.oracle_process import OracleProcess, forked, serve
from numpy.typing import ArrayLike

DEADLINE_S = 60


class InterpreterAborted(RuntimeError):
    """The interpreter could not run the program."""


class Interpreter:
    """The reference interpreter; use as a context manager."""

    def __init__(self) -> None:
        self._process = OracleProcess("helpers.servers.interpreter")

    def __enter__(self) -> "Interpreter":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        """The results of `@main` in `text`."""
        answer = self._process.ask((text, [np.asarray(a) for a in arguments]))
        if isinstance(answer, str):
            raise InterpreterAborted(answer)
        return answer


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


def _outcome(context: Any, text: str, arguments: list[np.ndarray]) -> Iterator[object]:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        yield _evaluate(context, text, arguments)
    except Exception as error:
        yield f"{type(error).__name__}: {error}"


def _answer(context: Any, request: tuple[str, list[np.ndarray]]) -> object:
    found, status = forked(lambda: _outcome(context, *request), DEADLINE_S)
    return (
        found[0] if found else f"the interpreter's process ended with status {status}"
    )


def _serve() -> None:
    from pcp.dialect.bindings import stablehlo
    from pcp.dialect.context import make_context

    context = make_context()  # made once: every child inherits it
    stablehlo.register_interpreter_dialect(context)  # for interpreter.run_parallel
    serve(functools.partial(_answer, context))


if __name__ == "__main__":
    _serve()
