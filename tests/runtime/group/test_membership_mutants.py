"""The simulation notices a protocol that is wrong in one place."""

from collections.abc import Callable

import pytest
from helpers.simulation.membership import Simulation

from pcp.runtime.collectives.operation import Operation
from pcp.runtime.group.group import Group
from pcp.runtime.group.membership import Key, Membership, SendMessage

decide = Membership._decide


def never_in_doubt(self: Operation, error: Exception) -> bool:
    """A member that voted gives up when it hears of a loss, and asks nobody."""
    return False


def decide_early(self: Membership, key: Key) -> list[SendMessage]:
    """Who has not answered yet is taken to have voted."""
    for name in self.survivors:
        self._decisions[key].answers.setdefault(name, True)
    return decide(self, key)


def concede_without_giving_up(self: Group, key: Key) -> bool:
    """A member says that it has not voted, and votes later."""
    operation = self._table.operations.get(key)
    if operation is not None:
        return operation.voted
    return self._table.outcomes.happened(key)


def hostile(seed: int) -> Simulation:
    """Many faults among few members, one of which is always late."""
    return Simulation(
        seed,
        members=3 + seed % 2,
        newcomers=0,
        steps=6,
        kills=2,
        restarts=0,
        cuts=2,
        slow=True,
    )


def first_violation(seeds: int) -> str:
    """What the first schedule that goes wrong says; "" when none does."""
    for seed in range(seeds):
        try:
            hostile(seed).run()
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "seeds"),
    [
        pytest.param(Operation, "_undecided", never_in_doubt, 150, id="undecided"),
        pytest.param(Membership, "_decide", decide_early, 150, id="early"),
        pytest.param(
            Group,
            "concede",
            concede_without_giving_up,
            5000,
            id="concede",
            marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
        ),
    ],
)
def test_members_are_divided_by_a_mutant(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable,
    seeds: int,
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    # Some of one operation's members have a sum and some have none.
    assert "None" in first_violation(seeds)


def test_the_same_schedules_divide_nobody_without_a_mutant() -> None:
    assert first_violation(150) == ""
