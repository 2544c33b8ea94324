"""Islands: a round is committed by all of their ranks, or by none.

`run_schedules` has the real state machines, `Islands` around `TrainingRun`; the ranks
compute a hash for each coordinate, and `Checks` holds that a committed state has all
its parts of one round, that no rank takes another's part, that the ledger is exact.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from helpers.simulation import scheduled_workers
from helpers.simulation.run_checks import Violation
from helpers.simulation.run_schedules import Schedule, first_violation
from helpers.simulation.scheduled_connections import Wire
from helpers.simulation.struck_islands import POINTS, first_torn

from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.effects import Effect
from pcp.training.coordinator.island import Island
from pcp.training.coordinator.island_formation import (
    Rank,
    form,
    form_shapes,
    larger_islands,
)
from pcp.training.coordinator.islands import Islands
from pcp.training.coordinator.recovery import Recovery
from pcp.training.coordinator.roster import Member
from pcp.training.storage.ledger_state import Progress
from pcp.training.wire.message import (
    VERSION,
    Message,
)
from pcp.training.wire.messages import (
    Hello,
)

SLOW_HOLDERS = (1574, 1583, 1646, 1662, 1668, 1671)
"""Seeds in which an island does not hand out its state in time."""
RESTORED_IN_A_GROUP = ((807, "together"),)
"""Seeds in which a rank is told to take a state while it waits for other islands."""
ELSEWHERE = pytest.mark.parametrize("point", POINTS)


@ELSEWHERE
def test_no_death_between_two_ranks_tears_a_state(point: str) -> None:
    """After one column's reduce, between two Prepared, after one rank's Commit."""
    wrong, struck = first_torn(range(50), point)
    assert wrong == ""
    assert struck > 35


@ELSEWHERE
def test_no_death_tears_a_state_of_islands_of_unlike_shape(point: str) -> None:
    """Of two ranks and of one, where one ring may fail while another is summed."""
    wrong, struck = first_torn(range(15), point, 2, 1)
    assert wrong == ""
    assert struck > 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 1), (4, 2, 1)], ids=str)
@ELSEWHERE
def test_no_death_of_a_thousand_does(point: str, sizes: tuple[int, ...]) -> None:
    assert first_torn(range(1000), point, *sizes)[0] == ""


@pytest.mark.parametrize(
    ("policy", "seeds"), [("together", 60), ("every step", 40), ("alone", 20)]
)
def test_no_schedule_stops_a_run_of_islands(policy: str, seeds: int) -> None:
    assert first_violation(range(seeds), policy, 2) == ""


@pytest.mark.parametrize(("policy", "seeds"), [("together", 25), ("alone", 10)])
def test_no_schedule_stops_islands_of_unlike_shape(policy: str, seeds: int) -> None:
    assert first_violation(range(seeds), policy, 2, 1) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sizes", [(2, 1), (4, 2, 1)], ids=str)
@pytest.mark.parametrize("policy", ["together", "alone"])
def test_no_schedule_of_a_thousand_does(policy: str, sizes: tuple[int, ...]) -> None:
    assert first_violation(range(1000), policy, *sizes) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["together", "every step", "fragments", "alone"])
def test_no_schedule_of_thousands_does(policy: str) -> None:
    assert first_violation(range(3000), policy, 2) == ""


@pytest.mark.parametrize(("seed", "policy"), RESTORED_IN_A_GROUP)
def test_a_rank_that_waits_for_other_islands_heeds_a_restore(
    monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    """Else it would be ended for its silence, though it hangs nowhere."""
    Schedule(seed, policy, 2).go()
    monkeypatch.setattr(scheduled_workers, "first_valid", lambda message, newest: 0)
    with pytest.raises(Violation, match="hangs nowhere"):
        Schedule(seed, policy, 2).go()


def test_islands_lose_ranks_and_come_back() -> None:
    """Else the schedules would prove little."""
    lines: list[str] = []
    for seed in range(20):
        run = Schedule(seed, "together", 2)
        run.trace = []
        run.go()
        lines += [line for line in run.trace if "island" in line or "its rank" in line]
    for what in ("all on", "filled by newcomers", "are back", "its rank 1", "rank 0"):
        assert sum(what in line for line in lines) >= 3, what


def test_a_state_that_an_island_hands_not_out_comes_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank by rank, of one round: `Checks` refuses all else. It is doubted, too."""
    left, asked = set[str](), set[str]()
    restore, ask = Recovery._restore, Saver._ask

    def restoring(
        self: Recovery, member: Member, address: str | None, **said: Any
    ) -> None:
        last, holders = member.taking.get("source"), self._run.roster.holders
        names = [holder.name for holder in holders(self._run.committed)]
        if member.lacked and last in names and len(names) > 1:
            assert said["source"] != last, f"{member.name} asks it again, of {names}"
            left.add(last)
        restore(self, member, address, **said)

    def asking(self: Saver, member: Member) -> None:
        asked.add(member.name)
        ask(self, member)

    monkeypatch.setattr(Recovery, "_restore", restoring)
    monkeypatch.setattr(Saver, "_ask", asking)
    for seed in SLOW_HOLDERS:
        Schedule(seed, "together", 2).go()
    assert left & asked


def rank(
    name: str, host: str, island: str | None = None, at: int | None = None
) -> Rank:
    hello = Hello(
        version=VERSION,
        worker=name,
        target="cpu",
        backend="cpu",
        device="none",
        address=f"{host}:{name[-1]}",
        island=island,
        coordinate=at,
    )
    return Rank(Wire, hello, since=0.0, seen=0.0)  # pyright: ignore[reportArgumentType]


def waiting_ranks(text: str) -> dict[str, Rank]:
    """Ranks by text: host and number; behind the colon the island and coordinate."""
    ranks = {}
    for each in text.split():
        name, _, was = each.partition(":")
        known = (was[0], int(was[1])) if was else (None, None)
        ranks[each] = rank(name, name[0], *known)
    return ranks


@pytest.mark.parametrize(
    ("waiting", "now", "found"),
    [
        ("a0 b1 a2 b3", 0.0, ["a0 a2", "b1 b3"]),  # newcomers, by host
        ("a0 b1", 0.0, []),
        ("a0 b1", 9.0, ["b1 a0"]),  # they have waited long
        ("a0:x1 b1 a2", 0.0, ["a2 a0:x1"]),  # a place is filled from its host
        ("a0:x1 a1:y1", 0.0, []),  # their islands may come back
        ("a0:x1 a1:x0", 0.0, ["a1:x0 a0:x1"]),  # an island is back
        ("a0:x1 a1:y0", 9.0, ["a1:y0 a0:x1"]),  # both keep their coordinates
        ("a0:x1 a1:y1", 9.0, ["a1:y1 a0:x1"]),
    ],
)
def test_who_makes_an_island(waiting: str, now: float, found: list[str]) -> None:
    """By host and number; behind the colon the island and the coordinate of before."""
    ranks = waiting_ranks(waiting)
    names = {id(each): text for text, each in ranks.items()}
    made = form(ranks.values(), 2, now, wait=3.0)
    assert [" ".join(names[id(r)] for r in one.ranks) for one in made] == found


@pytest.mark.parametrize(
    ("waiting", "lacking", "now", "found"),
    [
        ("a0 a1 a2", (1, 1), 0.0, ["0: a0 a1", "1: a2"]),
        ("a0", (1, 1), 0.0, ["1: a0"]),  # the run is to have one of that shape
        ("a0", (1, 0), 0.0, []),
        ("a0", (1, 0), 9.0, ["1: a0"]),  # it has waited for another in vain
        ("a0:x1", (1, 1), 0.0, []),  # its island may come back
        ("a0:x1", (1, 0), 9.0, ["1: a0:x1"]),  # it goes on alone
        ("a0:x1 a1", (1, 1), 0.0, ["0: a1 a0:x1"]),  # a newcomer takes the place
    ],
)
def test_of_which_shape_an_island_is(
    waiting: str, lacking: tuple[int, int], now: float, found: list[str]
) -> None:
    """Shape 0 has two ranks, shape 1 one."""
    ranks = waiting_ranks(waiting)
    names = {id(each): text for text, each in ranks.items()}
    made = form_shapes(ranks.values(), (2, 1), lacking, now, wait=3.0)
    said = [f"{one.shape}: {' '.join(names[id(r)] for r in one.ranks)}" for one in made]
    assert said == found


@pytest.mark.parametrize(
    ("waiting", "held", "lacking", "now", "found"),
    [
        ("a0", "a1:y0", (1, 0), 0.0, ["0: a1:y0 a0"]),  # a newcomer, and one device
        ("", "a1:y0 a2:z0", (1, 0), 0.0, ["0: a1:y0 a2:z0"]),  # two lone devices
        ("b0", "a1:y0", (1, 0), 0.0, []),  # of two hosts: they are to wait long
        ("a0 a2", "a1:y0", (1, 0), 0.0, ["0: a1:y0 a0"]),
        ("a0", "a1:y0", (0, 0), 0.0, []),  # the run has all that it is to have
        ("a0 a2", "", (1, 0), 0.0, []),  # they form one without that
        ("", "a1:y0", (1, 0), 0.0, []),
    ],
)
def test_smaller_islands_become_a_larger_one(
    waiting: str, held: str, lacking: tuple[int, int], now: float, found: list[str]
) -> None:
    """Shape 0 has two ranks, shape 1, of which `held` are more than needed, one."""
    free, lone = waiting_ranks(waiting), waiting_ranks(held)
    for each in lone.values():
        each.hello = each.hello.model_copy(update={"shape": 1})
    names = {id(each): text for text, each in (free | lone).items()}
    ranks = [*free.values()], [*lone.values()]
    made = larger_islands(*ranks, (2, 1), lacking, now, wait=3.0)
    said = [f"{one.shape}: {' '.join(names[id(r)] for r in one.ranks)}" for one in made]
    assert said == found


def test_islands_grow_in_drawn_schedules() -> None:
    """Those that went on smaller are larger again, of a newcomer and of lone ranks."""
    lines: list[str] = []
    for seed in range(40):
        run = Schedule(seed, "alone", 4, 2, 1)
        run.trace = []
        run.go()
        lines += run.trace
    grown = [line for line in lines if "go on in an island of" in line]
    whole = [line for line in lines if "tp=4: " in line or "tp=2: " in line]
    assert len(grown) >= 3
    assert any("places filled" in line or "are back" in line for line in whole)


# Wrong islands, which the schedules must notice.

lost, says = Islands._dissolve, Island.says


def takes_the_newest_part(
    self: Island, hellos: Any, progress: Progress
) -> tuple[int | None, str | None]:
    """What some of the ranks hold is taken for what the island holds."""
    rounds = [h.committed for h in hellos if h.committed is not None]
    newest = max(rounds, default=None)
    return newest, progress.digest if newest == progress.committed else None


def speaks_for_all(self: Island, rank: Rank, message: Message) -> Message | None:
    """One rank's word is the island's."""
    done = [says(self, other, message) for other in self.ranks]
    return done[-1]


def keeps_the_others(
    self: Islands, island: Island, reason: str, now: float
) -> list[Effect]:
    """The ranks that are left hear nothing, and nobody asks them again."""
    return lost(self, island, reason, now)[: -(self.sizes[0] - 1)]


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "point", "says"),
    [
        (Island, "_held", takes_the_newest_part, "committed", "rank 0|hangs nowhere"),
        (Island, "says", speaks_for_all, "prepared", "committed without|stands"),
        (Islands, "_dissolve", keeps_the_others, "reduced", "stands still|nowhere"),
    ],
)
def test_a_wrong_island_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable[..., Any],
    point: str,
    says: str,
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert re.search(says, first_torn(range(400), point)[0])
