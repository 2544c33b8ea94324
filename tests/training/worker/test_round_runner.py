"""A round with exchanges inside goes on behind those that its members made together."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pcp.errors import CollectiveAborted
from pcp.runtime.communicator.communicator import Communicator
from pcp.training.wire.message import Message
from pcp.training.wire.messages import (
    Commit,
    GroupFailed,
    Restore,
    RoundStart,
    Validated,
)
from pcp.training.worker.round_runner import RoundRunner
from pcp.training.worker.worker_state import PartialRound, WorkerState

LEASE = [(0, 8)]


def ignored(message: Message) -> None:
    """Nobody hears what is sent."""


def runner(
    progress: list[int], begun: bool, send: Callable[[Message], None] = ignored
) -> RoundRunner:
    """Of a worker with these exchanges, in round 3 or in none."""
    state: Any = WorkerState()
    state.load(SimpleNamespace(progress=progress, resumes=True))
    state.partial_round = PartialRound(3, LEASE) if begun else None
    return RoundRunner(
        state,
        SimpleNamespace(cancel=lambda reason, **which: None),
        send=send,
        log=lambda text: None,
        newest=lambda: None,
        called_off=lambda: False,
    )


def ordered(rank: int, **more: Any) -> RoundStart:
    """The order of a member of round 3."""
    return RoundStart(
        round=3, epoch=9, members=["a", "b"], rank=rank, lease=LEASE, steps=2,
        longest=2, **more,
    )  # fmt: skip


def together(members: list[RoundRunner]) -> list[bool]:
    """What each of them finds, in one group."""
    group = Communicator.in_process(len(members), timeout=20)
    found: dict[int, bool] = {}

    def find(rank: int) -> None:
        order = ordered(rank)
        found[rank] = members[rank]._all_as_far(order, group[rank])

    threads = [threading.Thread(target=find, args=(n,)) for n in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for member in group:
        member.close()
    return [found[rank] for rank in range(len(members))]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([2, 2], [2, 2], True),
        ([2, 4], [2, 4], True),
        ([-1, -1], [-1, -1], True),
        ([2, -1], [2, 2], False),
        # As many, and not with each other: the round would be one that never was.
        ([2, 2], [4, 4], False),
    ],
)
def test_exchanges_count_that_all_members_made_together(one, other, same) -> None:
    members = [runner(one, True), runner(other, True)]
    assert together(members) == [same, same]


def test_a_member_that_has_not_begun_takes_the_others_back() -> None:
    members = [runner([2, -1], True), runner([2, -1], False)]
    assert together(members) == [False, False]
    members = [runner([-1, -1], True), runner([-1, -1], False)]
    assert together(members) == [False, False]


def test_who_has_not_the_steps_that_it_is_to_bring_is_lost_by_its_own_word() -> None:
    """They were not finite, and it said so of an older attempt."""
    said: list[Message] = []
    member = runner([], False, said.append)
    member._state.committed = 2
    member.attempt(ordered(1, carried=True))
    (failed,) = said
    assert isinstance(failed, GroupFailed)
    assert failed.lost == [1]
    assert not failed.inside


class Inside:
    """A group of an island's ranks, along all axes of its mesh."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def abort(self, reason: str) -> None:
        self.fault = reason


def rank_of_an_island(send: Callable[[Message], None]) -> tuple[RoundRunner, Any]:
    """In groups of epoch 9, with a trainer whose program holds those of the outer step.

    An evaluation fails where the group that the program holds is broken.
    """
    made = runner([], False, send)
    trainer: Any = made._state.trainer

    def join(groups: Any) -> None:
        trainer.groups = groups

    def evaluate(batch: Any) -> float:
        if trainer.groups["tp"].fault:
            raise CollectiveAborted(trainer.groups["tp"].fault)
        return 1.0

    group: Any = made.group
    group._ordered = group._inner = 9
    for inside in (group._steps, group._outside):
        inside.epoch, inside.by_axes = 9, {"tp": Inside()}
    trainer.groups, trainer.axes_inside = group.groups_outside, ()
    trainer.join, trainer.evaluate = join, evaluate
    corpus: Any = SimpleNamespace(validation_batches=3, validation=lambda number: 0)
    made.inner_steps._corpus = corpus
    return made, group


@pytest.mark.parametrize("inner_epoch", [9, 10], ids=["same steps", "anew"])
def test_an_island_evaluates_while_another_one_dies(inner_epoch: int) -> None:
    """The next attempt ends the groups of the outer step: no rank evaluates in them."""
    said: list[Message] = []
    member, group = rank_of_an_island(said.append)
    group.validates = True  # as the link's thread notes with the commit
    group.heed(ordered(0).model_copy(update={"epoch": 10, "inner_epoch": inner_epoch}))
    assert group._outside.failed
    member.validate(Commit(round=3, epoch=9, digest="0" * 64, validate_share=(0, 1)))
    assert said == [Validated(round=3, loss_sum=3.0, batches=3)]


def test_an_island_that_is_formed_anew_does_not_go_on_evaluating() -> None:
    said: list[Message] = []
    member, group = rank_of_an_island(said.append)
    group.validates = True
    group.heed(Restore(round=3, source=None))
    member.validate(Commit(round=3, epoch=9, digest="0" * 64, validate_share=(0, 1)))
    (failed,) = said
    assert isinstance(failed, GroupFailed)
    assert failed.inside
