"""Derivatives of random programs: both modes and a difference agree, and so does the
program of reverse mode on a mesh, with parts of axes and sharding groups."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.random_programs import derived

from pcp.dialect.context import parse
from pcp.passes.core.stops import forget_derivatives

BATCH = 15


def _check_batch(
    check: Callable[[int], None], first: int, count: int = BATCH
) -> list[str]:
    """Failures among the programs `first` and following."""
    failures = []
    for seed in range(first, first + count):
        try:
            check(seed)
        except Exception as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}")
    return failures


BATCHES = [
    pytest.param(i, marks=() if i < BATCH else pytest.mark.slow)
    for i in range(0, 3000, BATCH)
]


@pytest.mark.parametrize("first", BATCHES)
def test_random_derivatives_agree(first: int, elsewhere) -> None:
    assert elsewhere.submit(_check_batch, derived.check, first).result(300) == []


@pytest.mark.slow  # random ones do, above
@pytest.mark.parametrize("first", BATCHES)
def test_derivatives_of_nested_programs_agree(first: int, elsewhere) -> None:
    """Loops and branches in each other that end by what the data say, and stops."""
    check = derived.check_nested
    assert elsewhere.submit(_check_batch, check, first).result(300) == []


def test_a_lost_stop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes then agree; what a difference says is something else."""
    right = derived.derived

    def without(text: str, mode: str) -> str:
        module = parse(text)
        forget_derivatives(module)
        return right(str(module), mode)

    monkeypatch.setattr(derived, "derived", without)
    failures = _check_batch(derived.check_nested, 0, 8)
    assert failures
    assert not any("two modes" in failure for failure in failures)


@pytest.mark.parametrize("mode", ["pcp-vjp", "pcp-jvp"])
def test_a_wrong_derivative_is_noticed(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a percent more of what one mode gives."""
    whole, right = derived.whole, derived.derived

    def wrong(text: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        results = whole(text, inputs)
        return [1.005 * y for y in results] if text in marked else results

    def noted(text: str, which: str) -> str:
        made = right(text, which)
        if which == mode:
            marked.add(made)
        return made

    marked: set[str] = set()
    monkeypatch.setattr(derived, "whole", wrong)
    monkeypatch.setattr(derived, "derived", noted)
    with pytest.raises(AssertionError, match="two modes"):
        derived.check(2)
