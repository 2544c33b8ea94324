"""IREE as an oracle, in a process that forks for each program: it may crash.

The oracle's process compiles a program, in a process of the compiler's, and runs it in
a fork, so that a program that writes out of bounds ends the fork and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from helpers.servers import compile_cache
from helpers.servers.oracle_process import OracleProcess, forked, serve
from numpy.typing import ArrayLike

DEADLINE_S = 60


class IreeFailed(RuntimeError):
    """IREE refused the program, or crashed on it."""


class Iree:
    """IREE on one of pcp's CPU targets; use as a context manager."""

    def __init__(self, target: str = "cpu:host") -> None:
        self._target = target
        self._process = OracleProcess("helpers.servers.iree_server")

    def __enter__(self) -> "Iree":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def on(self, target: str) -> "Iree":
        """The same process for another target."""
        other = Iree(target)
        other._process = self._process
        return other

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        """The results of `@main` in `text`, on the CPU."""
        (answer,) = self.run_all(text, {"main": arguments})
        if isinstance(answer, str):
            raise IreeFailed(answer)
        return answer

    def run_all(
        self, text: str, calls: Mapping[str, Sequence[ArrayLike]]
    ) -> list[list[np.ndarray] | str]:
        """The results of several functions of one module, or what went wrong.

        All share the fate of a module that is refused; those after one that
        crashes share its end.
        """
        plain = {name: [np.asarray(a) for a in given] for name, given in calls.items()}
        return self._process.ask((self._target, text, plain))


Calls = dict[str, list[np.ndarray]]


def _compiled(text: str, target: str) -> bytes | str:
    """The module, or why there is none."""
    from pcp.compiler.targets import find
    from pcp.errors import CompileError

    flags = ("--iree-hal-target-backends=llvm-cpu", *find(target).all_flags)
    try:
        return compile_cache.compile_text(text, flags, timeout=5 * DEADLINE_S)
    except CompileError as error:
        return f"iree-compile: {error}"


def _evaluate(module: Any, name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    results = module[name](*arguments)
    if not isinstance(results, (tuple, list)):
        results = [results]
    return [np.array(r.to_host()) for r in results]


def _results(compiled: bytes, calls: Calls) -> Iterator[list[np.ndarray] | str]:
    import iree.runtime as rt

    module = rt.load_vm_flatbuffer(compiled, driver="local-sync")
    for name, arguments in calls.items():
        try:
            yield _evaluate(module, name, arguments)
        except Exception as error:
            yield f"{type(error).__name__}: {str(error)[:2000]}"


def _answer(request: tuple[str, str, Calls]) -> list[Any]:
    """What each call gives, or what the fork died of."""
    target, text, calls = request
    compiled = _compiled(text, target)
    if isinstance(compiled, str):
        return [compiled] * len(calls)
    limit = DEADLINE_S + 2 * len(calls)
    found, status = forked(lambda: _results(compiled, calls), limit)
    ended = f"the process ended with status {status}"
    return [*found, *[ended] * (len(calls) - len(found))]


def _serve() -> None:
    import iree.runtime  # noqa: F401 - loaded once, before the forks

    serve(_answer)


if __name__ == "__main__":
    _serve()
