"""Wrong values of members: they never count, and whose they are is said."""

import math
from typing import Any

import pytest
from helpers.models.bigram_numpy import BLOCK
from helpers.present import present
from helpers.simulation.pure_run import Peer, World

from pcp.training.coordinator.effects import (
    Write,
)
from pcp.training.coordinator.events import (
    Gathered,
    NotSaved,
)
from pcp.training.coordinator.guards.conduct import Conduct
from pcp.training.data.lease_pool import size
from pcp.training.wire.messages import (
    Commit,
    GroupFailed,
)
from pcp.training.wire.operator_messages import (
    Order,
)

NAN = math.nan


@pytest.mark.parametrize(
    "computed",
    [{"loss": NAN}, {"loss": math.inf}, {"moved": NAN}, {"loss": NAN, "moved": NAN}],
)
def test_a_member_with_values_that_are_not_finite_is_left_out_by_name(computed) -> None:
    world = World("a", "b", "c")
    world.tick()
    for name in "ab":
        world.computes(name)
    world.computes("c", **computed)
    assert world.members == ["a", "b"]
    assert world.said("worker 2 at c:1 (c) is left out of round 1")
    for name in "ab":
        world.prepares(name)
    assert world.committed == 1
    assert "c" not in world.ledger[-1]["consumed"]
    world.tick()
    assert sorted(world.members) == ["a", "b", "c"], "the next round has it again"


def test_a_change_far_from_what_is_usual_is_left_out() -> None:
    world = World("a", "b", "c", norm_limit=20.0)
    for _ in range(3):
        world.makes()
    world.tick()
    world.computes("a", moved=19.0)
    world.computes("b", moved=21.0)
    world.computes("c")
    assert world.members == ["a", "c"]
    assert world.said("more than 20 times the usual")
    other = World("a", "b", norm_limit=None)
    for _ in range(5):
        other.makes()
    other.tick()
    other.computes("a", moved=1e30)
    assert other.members == ["a", "b"]


def test_a_run_in_which_all_losses_are_nan_pauses_with_a_word() -> None:
    world = World("a", "b")
    world.makes()
    for _ in range(2):  # once more, for it may have been a flipped bit
        world.tick()
        for name in "ab":
            world.computes(name, loss=NAN, nonfinite_step=2)
    world.tick()
    assert world.members == []
    assert world.committed == 1
    assert world.run.state.progress.paused
    assert world.said("the run is paused")
    assert "loss is nan at step 2" in world.run.status()["paused_because"]
    order = Order(key="k", action="resume")
    present(world.run.loop).operator_control.take(Peer("op"), order)
    world.makes()
    assert world.committed == 2
    assert world.run.status()["paused_because"] is None


def test_where_members_meet_inside_a_round_the_first_fault_is_whose_it_is() -> None:
    world = World("a", "b", "c", policy="every step")
    world.tick()
    world.computes("a", loss=NAN, nonfinite_step=2)
    world.computes("b", loss=NAN, nonfinite_step=1)
    assert world.members == ["a", "b", "c"], "who is to blame is not known yet"
    world.computes("c", loss=NAN, nonfinite_step=2)
    assert world.members == ["a", "c"]


def test_a_last_step_that_spoils_the_others_changes_is_whose_loss_it_is() -> None:
    """Theirs are finite: they met no more step behind the exchange that spread it."""
    world = World("a", "b", "c", policy="every step")
    world.tick()
    for name in "ac":
        world.computes(name, moved=NAN)
    world.computes("b", loss=NAN, nonfinite_step=2, moved=NAN)
    assert world.members == ["a", "c"]


@pytest.mark.parametrize("policy", ["every step", "fragments"])
def test_where_all_parts_are_bad_nobody_is_known_to_be_at_fault(policy: str) -> None:
    """Nobody is quarantined where that happens again soon."""
    world = World("a", "b", "c", policy=policy)
    for _ in range(3):
        world.tick()
        for name in "abc":
            world.computes(name, loss=NAN, nonfinite_step=1)
        world.makes()
    assert world.committed == 3
    assert len(world.run.state.roster.ready()) == 3
    assert not any(line["kind"] == "quarantined" for line in world.ledger)


def test_late_steps_that_are_not_finite_do_not_count() -> None:
    """Their member has dropped them: nobody waits for it to bring them."""
    world = World("a", "b", "c", late="next", quorum=2, grace_seconds=0.1)
    world.makes()
    world.tick()
    late = world.peers["c"].order
    for name in "ab":
        world.computes(name)
    world.tick(0.5)
    assert world.members == ["a", "b"]
    world.computes("c", loss=NAN, nonfinite_step=1)
    assert world.members == ["a", "b"], "it does not join with them"
    assert world.said("(c) is left out of round 2, late: loss is nan at step 1")
    _two_make_it(world)
    assert (world.peers["c"].order.carried, late.carried) == (False, False)


def _two_make_it(world: World) -> None:
    """Round 2 without c, and round 3 with all."""
    for name in "ab":
        world.computes(name)
    for name in "ab":
        world.prepares(name)
    world.makes()
    assert world.committed == 3
    assert sorted(world.ledger[-1]["consumed"]) == ["a", "b", "c"]


def test_late_steps_that_are_gone_are_not_waited_for() -> None:
    """Their member said of another attempt that they were not finite."""
    world = World("a", "b", "c", late="next", quorum=2, grace_seconds=0.1)
    world.makes()
    world.tick()
    for name in "ab":
        world.computes(name)
    world.tick(0.5)
    world.computes("c")
    assert world.members == ["a", "b", "c"]
    order = world.peers["c"].order
    assert order.carried
    at = {"round": order.round, "epoch": order.epoch, "reason": "they are gone"}
    world.says("c", GroupFailed(**at, lost=[order.rank]))
    assert world.members == ["a", "b"]
    _two_make_it(world)


def test_who_hides_what_spoils_the_result_is_found_by_leaving_it_out() -> None:
    """It says that its own part is finite; the state that all make is not."""
    world = World("a", "b", "c")
    world.makes()
    world.tick()
    for _ in range(4):
        liar = "b" in world.members
        for name in list(world.members):
            world.computes(name)
        for name in list(world.members):
            spoiled = ["parameter/table"] if liar else []
            world.prepares(
                name, "f" if liar else "a", spoiled=spoiled, moved=NAN if liar else 1.0
            )
        if world.committed == 2:
            break
    assert world.committed == 2
    assert sorted(world.ledger[-1]["consumed"]) == ["a", "c"]
    assert world.said("worker 1 at b:1 (b) is left out of round 2: the result")


def test_a_result_that_no_member_explains_pauses_the_run() -> None:
    world = World("a", "b")
    world.tick()
    for _ in range(8):
        for name in list(world.members):
            world.computes(name)
        for name in list(world.members):
            world.prepares(name, spoiled=["parameter/table"])
    assert world.committed == 0
    world.tick()
    assert world.run.state.progress.paused or world.said("is begun anew")


def test_the_state_that_most_prepared_stands_and_the_other_takes_it() -> None:
    world = World("a", "b", "c")
    world.makes("b")
    assert world.committed == 1
    assert world.run.state.progress.digest == "a" * 64
    commit = world.peers["b"].told[-1]
    assert isinstance(commit, Commit)
    assert commit.source in ("a:1", "c:1")
    assert world.said(
        "worker 1 at b:1 (b): it prepared another state of round 1 than most"
    )
    world.makes()
    assert world.committed == 2
    assert sorted(world.ledger[-1]["consumed"]) == ["a", "b", "c"]


def test_who_is_wrong_again_soon_is_quarantined_for_good() -> None:
    world = World("a", "b", "c")
    world.makes("b")
    world.makes("b")
    assert world.peers["b"].refused is not None
    assert {"kind": "quarantined", "worker": "b"}.items() <= next(
        line for line in world.ledger if line["kind"] == "quarantined"
    ).items()
    world.connect(again := Peer("b"))
    assert "quarantined" in (again.refused or "")
    world.makes()
    assert sorted(world.ledger[-1]["consumed"]) == ["a", "c"]


@pytest.mark.parametrize("policy", ["together", "every step", "fragments"])
def test_who_says_nan_again_soon_is_quarantined_and_the_others_go_on(
    policy: str,
) -> None:
    """Its lease returns once, also where the fault is found inside a round."""
    world = World("a", "b", "c", policy=policy)
    world.makes()
    for round_ in (2, 3):
        world.tick()
        world.computes("b", loss=NAN, nonfinite_step=1)
        for name in "ac":
            world.computes(name)
        assert world.members == ["a", "c"]
        world.makes()
        assert world.committed == round_
        assert sorted(world.ledger[-1]["consumed"]) == ["a", "c"]
    assert world.peers["b"].refused is not None
    world.makes()
    assert world.committed == 4


def test_a_flipped_bit_in_every_tenth_round_changes_nothing() -> None:
    def digests(wrong: int | None) -> list[Any]:
        world = World("a", "b", "c")
        for number in range(1, 101):
            world.makes(*("b" if wrong and number % wrong == 0 else ""))
        return [line for line in world.ledger if line["kind"] == "commit"]

    assert digests(10) == digests(None)


def test_rank_0_is_wrong_where_most_others_dispute_it() -> None:
    """Their own bits differ, as of different hardware: no digest has a majority."""
    world = World("a", "b", "c")
    world.tick()
    first = world.members[0]
    for name in world.members:
        world.computes(name)
    for name, digest in zip(world.members, "abc", strict=True):
        world.prepares(name, digest, disputes=name != first)
    assert first not in world.members
    assert len(world.members) == 2
    assert world.said(f"({first}) is left out of round 1: it prepared another state")


def test_of_two_members_the_one_that_does_not_repeat_itself_is_wrong() -> None:
    world = World("a", "b")
    world.tick()
    for mine in ("b", "c"):
        for name in "ab":
            world.computes(name)
        world.prepares("a", "a")
        world.prepares("b", mine)
    assert world.members == ["a"]
    assert world.committed == 0
    world.computes("a")
    world.prepares("a")
    assert world.committed == 1


def test_two_members_that_stay_apart_pause_the_run() -> None:
    world = World("a", "b")
    world.tick()
    for _ in range(3):
        for name in "ab":
            world.computes(name)
        for name, digest in zip("ab", "ab", strict=True):
            world.prepares(name, digest)
    assert world.committed == 0
    assert world.run.state.progress.paused
    assert world.said("prepare different states, time after time")


@pytest.mark.parametrize("claim", [{"tokens": (1 << 62) - 1}, {"steps": 10**6}])
def test_what_was_not_granted_is_not_claimed(claim) -> None:
    world = World("a", "b")
    world.tick()
    for name in "ab":
        world.computes(name)
    world.prepares("b", **claim)
    assert world.members == ["a"]
    assert world.said("worker 1 at b:1 (b) is left out of round 1: claims")
    world.prepares("a")
    assert world.run.state.progress.tokens == size(world.peers["a"].order.lease) * BLOCK


def test_a_state_that_is_not_finite_is_not_saved() -> None:
    world = World("a", checkpoint_every=1)
    world.answers = None
    world.makes()
    bad = ["parameters.table", "worker_0.v"]
    world.step(Gathered(1, ("a",), bad))
    assert not any(isinstance(effect, Write) for effect in world.effects)
    assert world.said("no checkpoint this time: parameters.table of round 1")


def test_who_falls_out_with_one_after_the_other_goes_itself() -> None:
    conduct, group = Conduct(), ["a", "b", "c", "d"]
    assert conduct.to_go(group, {"a": {"c"}})[0] == "a"
    assert conduct.to_go(group, {"b": {"c"}})[0] == "c"
    assert conduct.to_go(group, {"d": {"c"}})[0] == "c"
    assert conduct.to_go(group, {"d": {"d"}})[0] == "d", "by its own words"
    # Whom most accuse goes, and of two that accuse each other not always the same one.
    assert conduct.to_go(group, {"b": {"a", "d"}, "a": {"b"}})[0] == "b"
    pair = Conduct()
    gone = [pair.to_go(["a", "b"], {"a": {"b"}})[0] for _ in range(4)]
    assert gone == ["a", "b", "a", "b"]


def test_an_exchange_that_one_member_alone_fails_costs_nobody_else_for_ever() -> None:
    world = World("a", "b", "c", "d")
    world.tick()
    for _ in range(40):
        order = world.peers["c"].order
        lost = 1 if world.members[0] == "c" else 0
        failed = {"round": order.round, "epoch": order.epoch, "reason": "no answer"}
        world.says("c", GroupFailed(**failed, lost=[lost]))
        world.tick(0.5)
        if "c" not in world.run.state.roster:
            break
        for name in set(world.peers) - {m.name for m in world.run.state.roster}:
            world.peers[name] = Peer(name)
            world.connect(world.peers[name])
            world.tick()
    assert "c" not in world.run.state.roster
    assert world.said("it alone cannot reach")


def test_who_has_no_state_to_hand_out_does_not_stay() -> None:
    """A socket without a model, that says the right numbers."""
    world = World("a", "b", "c")
    for _ in range(2):
        world.makes()
    for _ in range(2):
        assert "b" in world.run.state.roster
        world.step(NotSaved("no answer", "b:1"))
    assert "b" not in world.run.state.roster
    assert world.said(
        "worker 1 at b:1 left: the state that it says it holds cannot be fetched"
    )
    world.makes()
    assert sorted(world.ledger[-1]["consumed"]) == ["a", "c"]
