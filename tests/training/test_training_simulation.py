"""No drawn schedule of faults makes the protocol of training wrong, or stop.

All of it is in the slow suite: beside threads that other tests have left in the same
process, a simulation has once waited for ever.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

import pytest
from helpers.training_simulation import Simulation, Wrong

from pcp.training.holding import Holding
from pcp.training.protocol import Message, Ready, RoundStart
from pcp.training.recovery import Recovery
from pcp.training.round_runner import RoundRunner

pytestmark = pytest.mark.slow
attempt, prepared_by_all = RoundRunner.attempt, Recovery.prepared_by_all


def simulate(seeds: Iterable[int], **fixed: Any) -> list[str]:
    """What each schedule made go wrong."""
    wrong = []
    for seed in seeds:
        try:
            Simulation(seed, **fixed).run()
        except Wrong as error:
            wrong.append(f"seed {seed}, {fixed}: {error}")
    return wrong


def test_a_seed_gives_the_same_run() -> None:
    first, again = (Simulation(5, faults=6).run() for _ in range(2))
    assert [line.split(" ")[0] for line in first.lines] == [
        line.split(" ")[0] for line in again.lines
    ]
    assert first.held == again.held


def test_no_schedule_stops_a_run_or_makes_it_wrong() -> None:
    assert simulate(range(100)) == []


def test_no_schedule_on_own_clocks_does() -> None:
    assert simulate(range(50), own_clocks=True) == []


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("own_clocks", [False, True])
def test_no_schedule_of_many_thousands_does(own_clocks: bool) -> None:
    step, count = 250, 10_000
    parts = [range(first, first + step) for first in range(0, count, step)]
    with ProcessPoolExecutor() as pool:
        jobs = [pool.submit(simulate, p, own_clocks=own_clocks) for p in parts]
        assert [wrong for job in jobs for wrong in job.result()] == []


# Wrong protocols, which the simulation must notice.


def keeps_to_itself_what_it_holds(self: RoundRunner, order: RoundStart) -> None:
    """A worker that caught up inside a group, or is ahead, does not say so."""
    send = self._send

    def all_but_ready(message: Message) -> None:
        if not isinstance(message, Ready):
            send(message)

    with mock.patch.object(self, "_send", all_but_ready):
        attempt(self, order)


def commits_what_was_prepared_with_others(self: Recovery) -> bool:
    """Whose lease went back since then is not looked at."""
    progress = self._shepherd.ledger.progress
    with mock.patch.object(progress, "members", [*progress.outstanding]):
        return prepared_by_all(self)


def keeps_the_inner_steps(self: Holding) -> None:
    """Inner steps of a round that went on without a worker are not undone."""
    self.dirty = True


ALONE = [("ready", "others")] * 2 + [("round_start", "others"), ("ready", "newcomer")]
BETWEEN_TWO_LINES = [("returned line", "shepherd")] * 2


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "seeds", "fixed"),
    [
        pytest.param(
            RoundRunner,
            "attempt",
            keeps_to_itself_what_it_holds,
            40,
            {"workers": 2, "faults": 3, "aimed": ALONE},
            id="silent",
        ),
        pytest.param(
            Recovery,
            "prepared_by_all",
            commits_what_was_prepared_with_others,
            40,
            {
                "workers": 3,
                "faults": 2,
                "late": "drop",
                "quorum": 2,
                "grace_seconds": 0.02,
                "aimed": BETWEEN_TWO_LINES,
            },
            id="prepared",
        ),
        pytest.param(
            Holding, "undo_inner_steps", keeps_the_inner_steps, 20, {}, id="undo"
        ),
    ],
)
def test_a_mutant_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable[..., Any],
    seeds: int,
    fixed: dict[str, Any],
) -> None:
    assert not simulate(range(seeds), **fixed)
    monkeypatch.setattr(owner, name, mutant)
    assert any(simulate([seed], **fixed) for seed in range(seeds))
