"""Forward and reverse mode agree with each other: ⟨g, J v⟩ = ⟨Jᵀ g, v⟩.

For every op of the table of rules, in programs of random shapes and attributes. The
two modes take different ways through most rules, so each checks the other, in f64 to
rounding. Both wrong in the same way is what central differences are for. The last
tests make each rule wrong by a thousandth, and see to it that this is noticed.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import numpy as np
import pytest
from helpers.cases import collectives, replicas
from helpers.dot.drawn_programs import PROGRAMS
from helpers.dot.points import Point
from helpers.oracles.activity import differentiated
from helpers.oracles.jax_gradients import derived_module, is_float, leaves
from helpers.present import present
from helpers.servers.interpreter import Interpreter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import (
    Bilinear,
    Decomposed,
    Elementwise,
    Linear,
    NoGradient,
    Refusal,
    Rule,
    Vjp,
)
from pcp.compiler.catalog import pipeline
from pcp.dialect import hlo
from pcp.dialect.context import parse

ROOT = Path(__file__).parents[2]
SEEDS = st.integers(0, 2**32 - 1)
BUDGET = settings(
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)
#: What the reference interpreter has no kernel for, or ends its process on.
LEGAL_FIRST = {"stablehlo.cholesky", "stablehlo.fft", "stablehlo.triangular_solve"}


class Agreement:
    """One program at one point, and what both modes say of it."""

    def __init__(self, name: str, seed: int, run: Interpreter) -> None:
        rng = np.random.default_rng([seed, crc32(name.encode())])
        self.point: Point = PROGRAMS[name](rng)
        self.run, self.legal = run, name in LEGAL_FIRST
        self.results = self._main(self.point.arguments)
        self.v = [self._direction(rng, self.point.arguments[i]) for i in self.point.wrt]
        self.g = [self._direction(rng, y) for y in self._floats(self.results)]

    @staticmethod
    def _direction(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
        return np.asarray(rng.standard_normal(like.shape), like.dtype)

    @staticmethod
    def _floats(values: list[np.ndarray]) -> list[np.ndarray]:
        return [y for y in values if is_float(y)]

    def _execute(self, text: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
        if self.legal:
            module = parse(text)
            pipeline("builtin.module(pcp-legalize)").run(module)
            text = str(module)
        return self.run.run(text, arguments)

    def _main(self, arguments: list[np.ndarray]) -> list[np.ndarray]:
        if self.point.fn is not None:
            with jax.enable_x64(True):
                return leaves(self.point.fn(*map(jnp.asarray, arguments)))
        return self._execute(str(derived_module(self.point.text)), arguments)

    def _of(self, pass_: str, more: list[np.ndarray]) -> list[np.ndarray]:
        """What a mode adds to the results, which it must leave as they are."""
        wrt = ",".join(map(str, self.point.wrt))
        derived = str(derived_module(self.point.text, f"{pass_}{{wrt={wrt}}}"))
        found = self._execute(derived, [*self.point.arguments, *more])
        count = len(self.results)
        for ours, own in zip(found[:count], self.results, strict=True):
            exact = self.point.tolerance
            np.testing.assert_allclose(ours, own, exact, exact)
        return found[count:]

    def forward(self) -> float:
        """⟨g, J v⟩."""
        return pairing(self.g, self._of("pcp-jvp", self.v))

    def reverse(self) -> float:
        """⟨Jᵀ g, v⟩."""
        return pairing(self._of("pcp-vjp", self.g), self.v)

    def difference(self, step: float) -> float:
        """⟨g, (f(x + h v) - f(x - h v)) / 2h⟩ by the program itself, h = step / |v|."""
        step /= max(1.0, *(float(np.abs(v).max(initial=0)) for v in self.v))
        ends = []
        for h in (step, -step):
            at = list(self.point.arguments)
            for i, v in zip(self.point.wrt, self.v, strict=True):
                at[i] = np.asarray(at[i] + np.asarray(h * v), at[i].dtype)
            ends.append(self._floats(self._main(at)))
        return (pairing(self.g, ends[0]) - pairing(self.g, ends[1])) / (2 * step)

    def check(self) -> None:
        """All three are the same number, to rounding of terms of their size."""
        forward, reverse = self.forward(), self.reverse()
        size = 1 + sum(float(np.abs(g).sum()) for g in self.g)
        exact = self.point.tolerance
        np.testing.assert_allclose(reverse, forward, exact, exact * size)
        if self.point.step is not None:
            rough = self.point.rough
            by_steps = self.difference(self.point.step)
            np.testing.assert_allclose(reverse, by_steps, rough, rough * size)


def pairing(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    """Σ g·t, in f64."""
    pairs = zip(left, right, strict=True)
    return float(sum(np.vdot(a.astype("f8"), b.astype("f8")) for a, b in pairs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_modes_agree(name: str, interpreter: Interpreter) -> None:
    Agreement(name, 1, interpreter).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_modes_agree_anywhere(name: str, interpreter: Interpreter) -> None:
    @settings(BUDGET, max_examples=20)
    @given(seed=SEEDS)
    def at(seed: int) -> None:
        Agreement(name, seed, interpreter).check()

    at()


# --- every rule has a program ---

#: Nothing at hand runs one: tests/autodiff/core/test_custom.py holds its rules.
NOT_RUN = {"stablehlo.custom_call"}


def of_members() -> set[str]:
    """Ops whose dot test runs over several members (rules/test_collectives.py, and
    rules/test_replicas.py against jax)."""
    texts = [text for text, _ in collectives.CASES.values()]
    texts += [collectives.ANNOTATED]
    texts += [c.text for c in (*replicas.CASES, replicas.BROADCAST)]
    return set().union(*map(differentiated, texts))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_has_the_op(name: str) -> None:
    point = PROGRAMS[name](np.random.default_rng(0))
    kept = {name} if name in ("func.call", "stablehlo.composite") else set()
    assert name in differentiated(point.text, inline=not kept)


def test_every_rule_has_a_program() -> None:
    wanted = {
        name
        for name, rule in registry.rules().items()
        if not isinstance(rule, NoGradient | Refusal)
    }
    assert sorted(wanted - set(PROGRAMS) - of_members() - NOT_RUN) == []


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "derivatives.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)(?:\[([\w.]+)\])?`", page))
    assert len(named) > 100
    for file, function, op in named:
        source = (ROOT / "tests" / "autodiff" / file).read_text()
        assert f"def {function}(" in source
        assert not op or op in PROGRAMS


# --- wrong rules are noticed ---


def _more(value: Any) -> Any:
    """A thousandth too large."""
    if value is None or not hlo.is_differentiable(value):
        return value
    return hlo.multiply(value, hlo.constant_like(value, 1.001))


def _each(values: Any) -> list[Any]:
    return [_more(value) for value in values]


def _after(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _more(fn(*arguments))


def bent(rule: Rule) -> Rule:
    """The rule with every cotangent a thousandth too large."""
    match rule:
        case Linear(every=None):
            return Linear(*(t and _after(t) for t in rule.transposes))
        case Linear(every=every):
            linear = present(every)
            return Linear(every=lambda at, g: _each(linear(at, g)))
        case Bilinear():
            return Bilinear(_after(rule.lhs), _after(rule.rhs))
        case Elementwise():
            return Elementwise(*(d and _after(d) for d in rule.derivatives))
        case Decomposed():
            expand = rule.expand
            return replace(rule, expand=lambda op: _each(expand(op)))
        case Vjp():
            return replace(rule, rule=lambda at: _each(rule.rule(at)), expand=None)
    raise AssertionError(rule)


#: A rule of each kind.
WRONG = {
    "stablehlo.negate",
    "stablehlo.concatenate",
    "stablehlo.dot_general",
    "stablehlo.exponential",
    "stablehlo.sort",
    "stablehlo.while",
    "stablehlo.einsum",
}
#: The tuple is taken apart as a whole. The others have rules of their own.
NOT_BENT = {"stablehlo.tuple", "stablehlo.get_tuple_element"}
BENT = [
    pytest.param(name, marks=() if name in WRONG else pytest.mark.slow)
    for name in PROGRAMS
    if name not in NOT_BENT
]


def notices(name: str, seed: int, interpreter: Interpreter) -> bool:
    try:
        Agreement(name, seed, interpreter).check()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("name", BENT)
def test_a_rule_wrong_by_a_thousandth_is_noticed(
    name: str, interpreter: Interpreter
) -> None:
    """At one of a few points: at some the op's derivative is zero, or f32."""
    rule = registry.find(name)
    assert rule is not None
    registry.register(name, bent(rule))
    try:
        assert any(notices(name, seed, interpreter) for seed in range(1, 9))
    finally:
        registry.unregister(name)
