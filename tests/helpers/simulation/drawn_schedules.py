"""Simulated runs of training in an interpreter of their own.

A simulation gives `time` and `threading` of whole modules a stand-in, for all threads
of the process: one that another test left behind would take turns that are not its own.

    python -m helpers.simulation.drawn_schedules '{"first": 0, "count": 100}'
"""

import json
import os
import subprocess
import sys
from typing import Any
from unittest import mock

from helpers.servers.processes import TESTS
from helpers.simulation.training import Simulation, Wrong

from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.worker.worker_state import WorkerState

finish_prepared = SynchronousRounds.finish_prepared


def wrong(first: int, count: int, seconds: float = 240.0, **fixed: Any) -> list[str]:
    """What each schedule of so many seeds made go wrong.

    `fixed` is a simulation's, and of `simulate` here.
    """
    asked = json.dumps({"first": first, "count": count} | fixed)
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "helpers.simulation.drawn_schedules", asked],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=seconds,
        check=True,
    )
    return json.loads(done.stdout)


def simulate(
    first: int,
    count: int,
    mutant: str | None = None,
    twice: bool = False,
    **fixed: Any,
) -> list[str]:
    """The same in this process; `twice`, that a seed gives the same run again too.

    With a `mutant` each seed is tried without it first, up to the seed that notices it.
    """
    found: list[str] = []
    for seed in range(first, first + count):
        try:
            run = Simulation(seed, **fixed).run()
            if twice:
                check_same(run, Simulation(seed, **fixed).run())
        except Wrong as error:
            found.append(f"seed {seed}, {fixed}: {error}")
        if mutant is not None and (noticed := _with(mutant, seed, fixed)):
            return [*found, noticed]
    return found


def _with(mutant: str, seed: int, fixed: dict[str, Any]) -> str | None:
    """How a schedule notices a wrong protocol."""
    try:
        # The schedules are aimed at runs in which nobody shows the first state.
        nobody = mock.patch.object(Saver, "proves", return_value=False)
        with nobody, mock.patch.object(*MUTANTS[mutant]):
            Simulation(seed, **fixed).run()
    except Wrong as error:
        return f"{mutant} at seed {seed}: {error}"
    return None


def check_same(one: Simulation, other: Simulation) -> None:
    """The same happened at the same times."""
    times, again = ([line.split(" ")[0] for line in r.lines] for r in (one, other))
    if times != again or one.held != other.held:
        raise Wrong("the same seed gave another run")


# Wrong protocols, which a simulation must notice.


def commits_what_was_prepared_with_others(self: SynchronousRounds) -> bool:
    """Whose lease went back since then is not looked at."""
    progress = self._run.progress
    with mock.patch.object(progress, "members", [*progress.outstanding]):
        return finish_prepared(self)


def keeps_the_inner_steps(self: WorkerState) -> None:
    """Inner steps of a round that went on without a worker are not undone."""
    self.dirty = True


MUTANTS = {
    "prepared": (
        SynchronousRounds,
        "finish_prepared",
        commits_what_was_prepared_with_others,
    ),
    "undo": (WorkerState, "undo_inner_steps", keeps_the_inner_steps),
}
"""What stands in for what, by name."""


if __name__ == "__main__":
    print(json.dumps(simulate(**json.loads(sys.argv[1]))))
