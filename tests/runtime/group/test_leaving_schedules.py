"""Barriers and goodbyes under drawn schedules; wrong ones are noticed.

In small worlds, where each member tells all others, and in the same ones along trees.
"""

from collections.abc import Iterator

import pytest
from helpers.simulation.along_trees import along_trees
from helpers.simulation.leaving import Farewells, Member

from pcp.errors import ProtocolError
from pcp.runtime.collectives.agreement import SUBTREE, Agreement, Said
from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.group.outcomes import Outcomes

hear = Agreement.hear


@pytest.fixture
def trees() -> Iterator[None]:
    """Worlds of all sizes agree along trees."""
    with along_trees():
        yield


def simulate(seeds: range, kills: int, most: int = 4) -> int:
    """How many operations happened; raises on any violation."""
    done = 0
    for seed in seeds:
        members = 2 + seed % (most - 1)
        deaths = min(kills, members - 2)
        run = Farewells(seed, members=members, kills=deaths, broadcasts=True).run()
        ended = [operation for m in run.members for operation, _ in m.reductions]
        done += sum(operation.committed for operation in ended)
    return done


@pytest.mark.parametrize("kills", [0, 1])
def test_all_that_was_called_before_has_happened_on_all(kills: int) -> None:
    assert simulate(range(200), kills) > 1000


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("kills", [0, 1])
def test_the_same_along_trees(kills: int) -> None:
    assert simulate(range(100), kills, most=8) > 400


@pytest.mark.slow  # 10,000 schedules, as the documentation says
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [0, 1])
def test_ten_thousand_schedules(kills: int) -> None:
    assert simulate(range(10_000), kills) > 50_000


@pytest.mark.slow  # the same number along trees
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("kills", [0, 1])
def test_ten_thousand_schedules_along_trees(kills: int) -> None:
    assert simulate(range(10_000), kills, most=8) > 50_000


def overtakes(self: Barrier) -> None:
    """A barrier that says at once that the member is there."""
    Operation.announce(self)


def in_haste(self: Member) -> None:
    """A member that leaves whatever is under way."""
    self.group.close()


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        pytest.param(Barrier, "announce", overtakes, id="barrier"),
        pytest.param(Member, "_leave", in_haste, id="close"),
    ],
)
def test_a_mutant_is_noticed(monkeypatch, owner, name, mutant) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(AssertionError, match="seed"):
        simulate(range(30), 0)


def believes_too_much(self: Agreement, peer: int, step: int) -> Said:
    """A member that takes a child's word for the votes of all."""
    said = hear(self, peer, step)
    if step == SUBTREE:
        self.votes |= self.peers
        said += self._next()
    return said


def asks_nobody(self: Agreement, peer: int, *, left: bool) -> Said:
    """A member that waits for the word of one that is gone."""
    self.gone.add(peer)
    return []


def says_nothing(self: Outcomes) -> bytes:
    """A goodbye that does not say what its member had called."""
    return b""


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize(
    ("owner", "name", "mutant", "kills"),
    [
        pytest.param(Agreement, "hear", believes_too_much, 0, id="subtree"),
        pytest.param(Agreement, "lose", asks_nobody, 1, id="lose"),
        pytest.param(Outcomes, "called", says_nothing, 1, id="called"),
    ],
)
def test_a_mutant_of_the_tree_is_noticed(
    monkeypatch, owner, name, mutant, kills
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises((AssertionError, ProtocolError), match=r"seed|cannot know"):
        simulate(range(300), kills, most=8)
