"""Derivatives of random programs: both modes and a difference agree, and so does the
program of reverse mode on a mesh, with parts of axes and sharding groups."""

import numpy as np
import pytest
from helpers.random_programs import derived

BATCH = 25


def _check_batch(first: int) -> list[str]:
    """Failures among the programs `first` and following."""
    failures = []
    for seed in range(first, first + BATCH):
        try:
            derived.check(seed)
        except Exception as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}")
    return failures


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(i, marks=() if i < BATCH else pytest.mark.slow)
        for i in range(0, 3000, BATCH)
    ],
)
def test_random_derivatives_agree(first: int, elsewhere) -> None:
    assert elsewhere.submit(_check_batch, first).result(300) == []


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
