"""Who hands out the state is killed on the way; another who has it goes on."""

import contextlib
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.faults.dying_donor import NAMES, SIZE, state_of
from helpers.worlds.communicators import eventually, outcome, together

from pcp.errors import PeerLost
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.coordinator import Coordinator

BYTES = SIZE * 8
SCRIPT = Path(__file__).parents[2] / "helpers" / "faults" / "dying_donor.py"


def equal(one: dict, other: dict) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in NAMES)


@pytest.mark.parametrize(("dies_in", "missing"), [(0, 3), (1, 2)])
def test_another_holder_takes_over_and_sends_what_is_missing(
    dies_in: int, missing: int
) -> None:
    """The newcomers' state is as it was after the failure, complete after the retry."""
    order = {"revision": 5, "seed": 1, "dies_in": dies_in}
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(
            Coordinator.listen("127.0.0.1:0", first=4, silence=1)
        )
        donor = subprocess.Popen(
            [sys.executable, SCRIPT, json.dumps({"at": where.address, **order})]
        )
        stack.callback(donor.wait, 20)
        stack.callback(donor.kill)
        # Rank 0, which is elected among equals.
        eventually(lambda: where.status()["waiting"] == ["donor"], 60)
        names = ["holder", "late", "later"]

        def join(name: str):
            return Communicator.join(where.address, name=name, timeout=60)

        comms = together(names, join)
        for comm in comms:
            stack.callback(comm.close)
        states = [state_of(1), state_of(2), state_of(3)]

        def sync(index: int):
            comm, state = comms[index], states[index]
            revision = 5 if index == 0 else 0

            def step(comm):
                comm.update_membership()
                return comm.param_sync(
                    state, revision=revision, source="elected", timeout=30
                )

            fault = outcome(lambda: step(comm))
            as_it_was = equal(state, state_of(index + 1))
            return fault, as_it_was, comm.retry(step, timeout=60)

        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(sync, range(3)))
        assert donor.wait(20) == -signal.SIGKILL
        for fault, as_it_was, _ in results:
            assert isinstance(fault, PeerLost), fault
            assert as_it_was
        assert all(equal(state, state_of(1)) for state in states)
        reports = [report for _, _, report in results]
        assert {report.source for report in reports} == {comms[0].names.index("holder")}
        assert [report.updated for report in reports] == [(), NAMES, NAMES]
        moved = [report.bytes_moved for report in reports]
        assert moved == [0, missing * BYTES, missing * BYTES]
