"""Barriers and goodbyes under drawn schedules; wrong ones are noticed."""

import pytest
from helpers.simulation.leaving import Farewells, Member

from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.operation import Operation


def simulate(seeds: range, kills: int) -> int:
    """How many reductions happened; raises on any violation."""
    done = 0
    for seed in seeds:
        run = Farewells(seed, members=2 + seed % 3, kills=min(kills, seed % 3)).run()
        ended = [operation for m in run.members for operation, _ in m.reductions]
        done += sum(operation.committed for operation in ended)
    return done


@pytest.mark.parametrize("kills", [0, 1])
def test_all_that_was_called_before_has_happened_on_all(kills: int) -> None:
    assert simulate(range(300), kills) > 1500


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [0, 1])
def test_ten_thousand_schedules(kills: int) -> None:
    assert simulate(range(10_000), kills) > 50_000


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
