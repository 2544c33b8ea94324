"""The table of rules is complete, honest, and each entry is held against jax."""

import re
from pathlib import Path

import pytest
import torch_mlir as bindings
from helpers.cases import (
    chlo,
    client,
    composed,
    contractions,
    control_flow,
    data_movement,
    elementwise,
    linear_algebra,
    reductions,
)
from helpers.cases import (
    collectives as cases_collectives,
)
from helpers.cases import (
    replicas as cases_replicas,
)
from helpers.oracles.activity import differentiated
from helpers.oracles.jax_gradients import lowered

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Decomposed, NoGradient, Refusal, Vjp
from pcp.dialect.context import make_context
from pcp.frontends.linalg.primitives import FACTORIZATIONS

CHAPTERS = (
    chlo,
    client,
    composed,
    contractions,
    control_flow,
    data_movement,
    elementwise,
    linear_algebra,
    reductions,
)
#: Tested apart: nothing at hand runs the first, the others have rules by their name.
APART = {
    "stablehlo.cholesky",
    "stablehlo.custom_call",
    "stablehlo.composite",
    "func.call",
}


def test_every_rule_has_a_case() -> None:
    covered: set[str] = set()
    for chapter in CHAPTERS:
        for case in chapter.CASES:
            covered |= differentiated(lowered(case))
    collectives = [text for text, _ in cases_collectives.CASES.values()]
    replicas = [c.text for c in (*cases_replicas.CASES, cases_replicas.BROADCAST)]
    for text in (*collectives, cases_collectives.ANNOTATED, *replicas):
        covered |= differentiated(text)
    wanted = {
        name
        for name, rule in registry.rules().items()
        if not isinstance(rule, NoGradient | Refusal)
    }
    assert sorted(wanted - covered - APART) == []


def test_zero_and_refused_say_why() -> None:
    for name, rule in registry.rules().items():
        if isinstance(rule, NoGradient):
            assert len(rule.why) > 10, name
        if isinstance(rule, Refusal | Decomposed):
            assert len(rule.why) > 30, name


def registered(prefix: str) -> set[str]:
    """Every op of a dialect that the bindings register.

    They have no list of them, but their library holds the names.
    """
    context = make_context()
    name = re.compile(rf"{prefix}\.[a-z_0-9]+".encode())
    found: set[str] = set()
    for library in (Path(bindings.__path__[0]) / "_mlir_libs").glob("*.so*"):
        for text in set(name.findall(library.read_bytes())):
            # What follows in the file may run on from the name.
            ends = range(len(prefix) + 2, len(text) + 1)
            found.update(text[:end].decode() for end in ends)
    return set(filter(context.is_registered_operation, found))


#: Ops that are no computation: the end of a region.
STRUCTURE = {"stablehlo.return"}
#: Replaced by the function that they call, before any walk.
CALLS = {"stablehlo.composite"}


@pytest.mark.parametrize(("dialect", "least"), [("stablehlo", 110), ("chlo", 45)])
def test_every_registered_op_is_zero_refused_or_has_a_rule(
    dialect: str, least: int
) -> None:
    names = registered(dialect)
    assert len(names) >= least
    assert not names - set(registry.rules()) - STRUCTURE - CALLS


def test_names_are_those_of_registered_ops() -> None:
    """A misspelt entry would never be found by the walk."""
    context = make_context()
    names = {n for n in registry.rules() if not n.startswith("composite:")}
    for name in names:
        assert context.is_registered_operation(name), name
    composites = {f"composite:jax.{name}" for name in FACTORIZATIONS}
    assert set(registry.rules()) - names == composites


def test_registered_rule_is_used_and_forgotten() -> None:
    rule = Vjp(lambda at: [at.g])
    registry.register("mine.op", rule)
    try:
        assert registry.find("mine.op") is rule
    finally:
        registry.unregister("mine.op")
    assert registry.find("mine.op") is None


@pytest.mark.parametrize("name", ["stablehlo.floor", "stablehlo.compare"])
def test_zero_and_unwritten_are_different_facts(name: str) -> None:
    assert registry.is_no_gradient(name)
    assert not registry.is_no_gradient("stablehlo.nothing_of_this_name")
    assert registry.find("stablehlo.nothing_of_this_name") is None
