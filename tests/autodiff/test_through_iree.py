"""The VJP of every case of every chapter, compiled and run by IREE, against jax.

A sample by default; all of them with `make test-full`.
"""

import pytest
from helpers.oracles.full_stack import Group, chapters
from helpers.oracles.jax_gradients import Case
from helpers.servers.iree_server import Iree

SIZE = 20  # cases of a module
STRIDE = 124  # one of so many is in the sample; rules/ has them in the interpreter


def groups(cases: list[Case]) -> list[tuple[Group, Case]]:
    """Each case with the group that it is compiled in."""
    parts = [Group(cases[i : i + SIZE]) for i in range(0, len(cases), SIZE)]
    return [(group, case) for group in parts for case in group.cases]


def name(value: object) -> str:
    """A case's name; the group says nothing."""
    return value.name if isinstance(value, Case) else ""


EVERY = [case for cases in chapters().values() for case in cases]
SAMPLE = EVERY[::STRIDE]
REST = [case for i, case in enumerate(EVERY) if i % STRIDE]


@pytest.mark.parametrize(("group", "case"), groups(SAMPLE), ids=name)
def test_sample(group: Group, case: Case, iree: Iree) -> None:
    group.check(case, iree)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "case"), groups(REST), ids=name)
def test_rest(group: Group, case: Case, iree: Iree) -> None:
    group.check(case, iree)
