"""The cases that partitioners are judged by: equality, and what members send."""

from collections import Counter

import numpy as np
import pytest
from helpers.cases.named import CASES, Case
from helpers.oracles.spmd import PLAN, run_joined, whole

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

BY_NAME = {case.name: case for case in CASES}


def _sent(module: ir.Module) -> list[Counter[str]]:
    """Collectives by kind, of each member."""
    members = []
    for view in module.body.operations:
        if view.operation.name == "builtin.module":
            kinds = Counter[str]()
            view.operation.walk(lambda op, own=kinds: _count(op.operation, own))
            members.append(kinds)
    return members


def _count(op: ir.Operation, kinds: Counter[str]) -> ir.WalkResult:
    if op.name.startswith("pcp.") and "axes" in op.attributes:
        kinds[op.name.removeprefix("pcp.")] += 1
    return ir.WalkResult.ADVANCE


def _run(name: str) -> tuple[list[dict[str, int]], np.ndarray, np.ndarray]:
    """(what each member sends, the joined result, the whole program's)."""
    case: Case = BY_NAME[name]
    module = parse(case.text())
    pipeline(PLAN).run(module)
    (found,) = run_joined(module, case.inputs())
    (expected,) = whole(case.text(), case.inputs())
    return [dict(kinds) for kinds in _sent(module)], found, expected


def test_names_are_distinct() -> None:
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize("name", BY_NAME)
def test_named_case(name: str, elsewhere) -> None:
    sent, found, expected = elsewhere.submit(_run, name).result(60)
    np.testing.assert_array_equal(found, expected)
    assert np.abs(expected).max() > 0
    assert sent == [BY_NAME[name].sent] * len(sent)
