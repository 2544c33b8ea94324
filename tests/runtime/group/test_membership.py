"""The membership protocol: its phases one by one, and under a hostile scheduler."""

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers.simulation.along_trees import along_trees
from helpers.simulation.membership import Simulation

from pcp.runtime.group.membership import (
    BLAMES,
    EPOCHS_PER_INCARNATION,
    Membership,
    Past,
    Phase,
    SendMessage,
)


def messages(sends: list[SendMessage]) -> list[tuple[str, str]]:
    return [(send.to, send.what) for send in sends]


def group_of(*names: str) -> Membership:
    """A stable group."""
    state = Membership(first=len(names))
    for name in names:
        state.join(name, f"at-{name}")
    for name in names:
        state.formed(name, 1)
    assert state.phase is Phase.STABLE
    return state


def test_who_asks_hears_who_is_here() -> None:
    state = Membership(first=2)
    state.join("a", "A")
    facts = {"group": [], "waiting": ["a"], "wanted": 2}
    assert state.who("a") == SendMessage("a", "present", facts)
    state.join("b", "B")
    assert state.who("b").facts == {"group": ["a", "b"], "waiting": [], "wanted": 0}
    for name in ("a", "b"):
        state.formed(name, 1)
    state.join("c", "C")
    assert state.who("a").facts == {
        "group": ["a", "b"],
        "waiting": ["c"],
        "wanted": 0,
    }


def test_the_first_group_waits_for_enough_members() -> None:
    state = Membership(first=2)
    assert state.join("a", "A") == []
    facts = {"epoch": 1, "names": ["a", "b"], "addresses": ["A", "B"]}
    assert state.join("b", "B") == [
        SendMessage(n, "prepare", facts) for n in ("a", "b")
    ]
    assert state.formed("a", 1) == []
    assert messages(state.formed("b", 1)) == [("a", "go"), ("b", "go")]


def test_newcomers_wait_for_every_vote() -> None:
    state = group_of("a", "b")
    assert state.join("c", "C") == []
    assert state.vote("a") == []
    assert state.phase is Phase.VOTING
    sends = state.vote("b")
    assert messages(sends) == [("a", "prepare"), ("b", "prepare"), ("c", "prepare")]
    assert sends[0].facts["names"] == ["a", "b", "c"]
    assert sends[0].facts["epoch"] == 2


def test_without_a_change_the_epoch_stays() -> None:
    state = group_of("a", "b")
    state.vote("a")
    assert messages(state.vote("b")) == [("a", "go"), ("b", "go")]
    assert state.epoch == 1
    state.vote("a", broken=True)
    assert messages(state.vote("b")) == [("a", "prepare"), ("b", "prepare")]


def test_the_last_missing_vote_may_be_a_death() -> None:
    state = group_of("a", "b", "c")
    state.vote("a")
    state.vote("b")
    sends = state.died("c")
    assert messages(sends) == [
        ("a", "dead"), ("b", "dead"), ("a", "prepare"), ("b", "prepare"),
    ]  # fmt: skip


def test_a_vote_can_be_taken_back() -> None:
    state = group_of("a", "b")
    state.vote("a")
    assert messages(state.unvote("a")) == [("a", "unvoted")]
    assert state.vote("b") == []
    assert messages(state.vote("a")) == [("a", "go"), ("b", "go")]


def test_who_dies_while_forming_is_left_out() -> None:
    state = Membership(first=3)
    for name in "abc":
        state.join(name, name)
    state.formed("a", 1)
    sends = state.died("b")
    assert messages(sends) == [("a", "prepare"), ("c", "prepare")]
    assert sends[0].facts["epoch"] == 2
    assert state.formed("c", 1) == []
    assert state.formed("c", 2) == []
    assert messages(state.formed("a", 2)) == [("a", "go"), ("c", "go")]


def test_who_cannot_be_reached_is_refused_in_the_end() -> None:
    state = Membership(first=3)
    for name in "abc":
        state.join(name, name)
    for turn in range(1, BLAMES):
        assert state.failed("a", turn, ["c"])[0].what == "prepare"
    sends = state.failed("a", BLAMES, ["c"])
    assert (sends[0].to, sends[0].what) == ("c", "refused")
    assert messages(sends[1:]) == [("a", "prepare"), ("b", "prepare")]


def test_names_are_unique() -> None:
    state = group_of("a", "b")
    assert messages(state.join("a", "elsewhere")) == [("a", "refused")]


def test_an_operation_happens_if_all_survivors_voted_for_it() -> None:
    state = group_of("a", "b", "c")
    state.died("c")
    key = (7, 3)
    assert messages(state.ask("a", 1, key)) == [("b", "query")]
    sends = state.answer("b", 1, key, True)
    assert [(s.to, s.facts["commit"]) for s in sends] == [("a", True)]
    # Whoever asks later hears the same.
    sends = state.ask("b", 1, key)
    assert [(s.to, s.facts["commit"]) for s in sends] == [("b", True)]


def test_an_operation_one_survivor_did_not_vote_for_does_not_happen() -> None:
    state = group_of("a", "b", "c")
    state.died("c")
    state.ask("a", 1, (7, 3))
    sends = state.answer("b", 1, (7, 3), False)
    assert [(s.to, s.facts["commit"]) for s in sends] == [("a", False)]


def test_a_dead_survivor_need_not_answer() -> None:
    state = group_of("a", "b", "c")
    state.ask("a", 1, (7, 3))
    state.answer("b", 1, (7, 3), True)
    sends = state.died("c")
    decided = [s for s in sends if s.what == "decided"]
    assert [(s.to, s.facts["commit"]) for s in decided] == [("a", True)]


def test_a_restarted_coordinator_learns_the_group_from_its_members() -> None:
    group = {"a": "A", "b": "B"}
    state = Membership(incarnation=3)
    assert state.resume("a", "A", Past(epoch=5, group=group)) == []
    assert (state.epoch, state.survivors) == (5, ["a", "b"])
    assert state.vote("a", broken=True) == []  # b may still come back
    sends = state.resume("b", "B", Past(epoch=5, group=group, voting=True))
    assert sends[0].facts["epoch"] == 3 * EPOCHS_PER_INCARNATION + 1


def test_go_is_said_again_to_who_missed_it() -> None:
    group = {"a": "A", "b": "B"}
    for order in ("ab", "ba"):
        state = Membership(incarnation=1)
        pasts = {
            "a": Past(epoch=7, group=group),
            "b": Past(epoch=0, formed=7, prepared=7, group=group),
        }
        sends = [s for name in order for s in state.resume(name, name, pasts[name])]
        assert ("b", "go") in messages(sends)
        assert state.epoch == 7
        assert state.phase is Phase.STABLE


def test_a_group_that_nobody_was_told_to_go_on_with_is_formed_again() -> None:
    group = {"a": "A", "b": "B"}
    state = Membership(incarnation=1)
    past = Past(epoch=0, formed=7, prepared=7, group=group)
    assert state.resume("a", "A", past) == []
    sends = state.resume("b", "B", past)
    assert messages(sends) == [("a", "prepare"), ("b", "prepare")]
    assert sends[0].facts["epoch"] == EPOCHS_PER_INCARNATION + 1


def test_who_was_taken_for_dead_joins_anew() -> None:
    state = group_of("a", "b")
    state.died("b")
    past = Past(epoch=1, group={"a": "A", "b": "B"})
    assert messages(state.resume("b", "B", past)) == [("b", "refused")]
    assert state.resume("b", "B", Past()) == []
    assert (state.survivors, state.waiting) == (["a"], ["b"])
    assert messages(state.vote("a")) == [("a", "prepare"), ("b", "prepare")]


def test_who_comes_back_without_a_memory_is_somebody_new() -> None:
    """It did not vote for what is in doubt; who had its name before it may have."""
    state = group_of("a", "b", "c")
    assert messages(state.ask("b", 1, (0, 5))) == [("a", "query"), ("c", "query")]
    sends = state.resume("c", "C", Past())
    assert messages(sends) == [("a", "dead"), ("b", "dead")]
    assert state.answer("c", 1, (0, 5), False) == []
    decided = state.answer("a", 1, (0, 5), True)
    assert [(send.to, send.facts["commit"]) for send in decided] == [("b", True)]
    assert (state.survivors, state.waiting) == (["a", "b"], ["c"])
    state.vote("a", broken=True)
    prepared = state.vote("b", broken=True)
    assert prepared[0].facts["names"] == ["a", "b", "c"]
    assert state.died("c") != []  # it is a candidate now


def test_a_newcomer_under_the_name_of_a_dead_member_has_no_vote() -> None:
    """Nor has it one when a group comes back that knew the dead one."""
    state = Membership(incarnation=1, settled=False)
    assert state.resume("c", "C", Past()) == []
    group = {"a": "A", "b": "B", "c": "C"}
    past = Past(epoch=5, group=group, prepared=5)
    for name in "ab":
        state.resume(name, name, past)
    assert (state.survivors, state.waiting) == (["a", "b"], ["c"])
    assert messages(state.ask("b", 5, (0, 5))) == [("a", "query")]
    assert state.died("c") == []


def test_who_missed_epochs_does_not_hold_up_who_was_in_them() -> None:
    """It comes back before all others to a coordinator that knows nothing yet."""
    state = Membership(incarnation=1)
    old = Past(epoch=2, group={"a": "A", "b": "B", "c": "C"}, prepared=2)
    assert state.resume("a", "A", old) == []
    state.join("new", "N")
    state.ask("a", 2, (0, 4))
    late = Past(epoch=7, group={"b": "B", "d": "D"}, prepared=7)
    assert messages(state.resume("b", "B", late)) == [("a", "refused")]
    assert state.survivors == ["b", "d"]
    assert state.waiting == ["new"]
    assert messages(state.resume("a", "A", old)) == [("a", "refused")]
    state.resume("d", "D", late)
    state.vote("b")
    prepared = state.vote("d")[0]
    assert prepared.facts["names"] == ["b", "d", "new"]


def test_newcomers_wait_for_a_group_that_may_come_back() -> None:
    state = Membership(incarnation=1, settled=False)
    assert state.join("new", "N") == []
    assert state.resume("a", "A", Past(epoch=5, group={"a": "A"})) == []
    assert (state.survivors, state.waiting) == (["a"], ["new"])
    assert state.settle() == []
    assert messages(state.vote("a")) == [("a", "prepare"), ("new", "prepare")]
    empty = Membership(incarnation=1, settled=False)
    assert empty.join("new", "N") == []
    assert messages(empty.settle()) == [("new", "prepare")]


def test_who_was_called_dead_before_a_restart_stays_dead() -> None:
    """An outcome may have been decided without it, and carried out (seed 36042)."""
    group = {"a": "A", "b": "B", "c": "C"}
    known = {"epoch": 5, "group": group, "prepared": 5}
    state = Membership(incarnation=1, settled=False)
    state.resume("a", "A", Past(**known, broken=True, gone=["c"]))
    assert state.survivors == ["a", "b"]
    sends = state.resume("c", "C", Past(**known))
    assert [(send.to, send.what) for send in sends] == [("c", "refused")]
    state = Membership(incarnation=1, settled=False)
    state.resume("c", "C", Past(**known))
    sends = state.resume("a", "A", Past(**known, broken=True, gone=["c"]))
    assert ("c", "refused") in [(send.to, send.what) for send in sends]


@pytest.mark.parametrize("seed", [36042, 41178])
def test_schedules_that_once_divided_the_members(seed: int) -> None:
    simulate(range(seed, seed + 1))


def simulate(seeds: range) -> tuple[int, int, int]:
    """Epochs, sums and aborts of these runs; raises on any violation."""
    counts = [0, 0, 0]
    for seed in seeds:
        run = Simulation(
            seed,
            members=2 + seed % 4,
            kills=seed % 4,
            restarts=int(seed % 3 == 0),
            leaves=int(seed % 7 == 0),
            barriers=seed % 2 == 1,
            slow=seed % 5 == 0,
        ).run()
        counts[0] += len(run.epochs)
        for node in run.nodes.values():
            for outcome in node.outcomes:
                counts[1 + (outcome.value is None)] += 1
    return counts[0], counts[1], counts[2]


def test_no_schedule_divides_the_members() -> None:
    """Outcomes agree, sums are whole, aborts change nothing, all finish."""
    epochs, sums, aborts = simulate(range(160))
    assert epochs > 320
    assert sums > 1200
    assert aborts > 32


def simulate_along_trees(seeds: range) -> tuple[int, int, int]:
    """The same where votes and small sums go along trees."""
    with along_trees():
        return simulate(seeds)


def test_no_schedule_divides_members_that_agree_along_trees() -> None:
    epochs, sums, aborts = simulate_along_trees(range(100))
    assert epochs > 200
    assert sums > 700
    assert aborts > 15


@pytest.mark.slow  # as many schedules as the documentation says
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("runs", "count"),
    [
        pytest.param(simulate, 100_000, id="each tells all"),
        pytest.param(simulate_along_trees, 10_000, id="along trees"),
    ],
)
def test_no_schedule_of_very_many_divides_the_members(runs, count) -> None:
    step = 500
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(runs, (range(a, a + step) for a in range(0, count, step))))
    assert sum(epochs for epochs, _, _ in done) > 2 * count
