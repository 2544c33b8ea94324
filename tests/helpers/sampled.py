"""Cases of which a few stand for all: the others are slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(
    names: str, values: Iterable[Any], quick: int | Collection[Any], **options: Any
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize`; not slow are the first `quick` values, or those in it.

    What is a `pytest.param` already keeps its marks. That none is quick is an error.
    """
    several = "," in names
    every, some = [], False
    for number, value in enumerate(values):
        if isinstance(value, type(pytest.param())):
            every.append(value)
            continue
        first = number < quick if isinstance(quick, int) else value in quick
        some |= first
        marks = () if first else pytest.mark.slow
        every.append(pytest.param(*(value if several else (value,)), marks=marks))
    assert some, f"{quick} are none of the values of {names}"
    return pytest.mark.parametrize(names, every, **options)
