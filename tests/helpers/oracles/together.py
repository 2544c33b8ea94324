"""Functions of JAX as pcp-legalize leaves them, in one module that IREE compiles once.

Starting iree-compile, and linking what it makes, costs more than a function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from helpers.oracles.full_stack import renamed
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse

Function = Callable[..., Any]


@dataclass
class Together:
    """Functions by name, each with its arguments; none runs until one is asked for.

    Where IREE refuses the module, or a call ends its process, each is tried alone.
    """

    functions: Mapping[str, tuple[Function, Sequence[np.ndarray]]]
    _answers: dict[str, list[np.ndarray] | str] = field(default_factory=dict)

    def check(self, iree: Iree, name: str) -> None:
        """IREE's results of one function are JAX's."""
        function, arguments = self.functions[name]
        want = jax.tree.leaves(jax.jit(function, keep_unused=True)(*arguments))
        for ours, theirs in zip(self.results(iree, name), want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

    def results(self, iree: Iree, name: str) -> list[np.ndarray]:
        """What IREE gives for one function."""
        if not self._answers:
            self._run(iree)
        answer = self._answers[name]
        assert not isinstance(answer, str), f"{name}: {answer}"
        return answer

    def _run(self, iree: Iree) -> None:
        programs = {name: _program(*it) for name, it in self.functions.items()}
        prefixed = {name: f"f{i}_" for i, name in enumerate(programs)}
        text = "\n".join(renamed(parse(programs[n]), p) for n, p in prefixed.items())
        calls = {f"{p}main": self.functions[n][1] for n, p in prefixed.items()}
        answers = iree.run_all(text, calls)
        for name, answer in zip(programs, answers, strict=True):
            if isinstance(answer, str):
                call = {"main": self.functions[name][1]}
                (answer,) = iree.run_all(programs[name], call)
            self._answers[name] = answer


def agrees(iree: Iree, function: Function, *arguments: np.ndarray) -> None:
    """IREE's results of a function alone are JAX's."""
    Together({"main": (function, arguments)}).check(iree, "main")


def _program(function: Function, arguments: Sequence[np.ndarray]) -> str:
    jitted = jax.jit(function, keep_unused=True)
    return legalized(jitted.lower(*arguments).as_text())
