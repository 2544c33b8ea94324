"""`pcp coordinator` killed in the middle of an operation, or frozen."""

import signal

import numpy as np
import pytest
from helpers.servers.processes import Processes, free_port
from helpers.worlds.communicators import eventually, outcome, together
from helpers.worlds.elastic_groups import join

from pcp.errors import PeerLost
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind

SIZE = 200_000


def test_operations_go_on_and_deaths_are_settled_by_its_successor(tmp_path) -> None:
    port = free_port()
    flags = ["coordinator", "--port", port, "--members", 3, "--silence", 3]
    flags += ["--state", tmp_path / "state"]
    comms = []
    with Processes() as processes:
        first = processes.start("pcp.tools.cli", *flags)
        first.wait_for("listening")
        try:
            comms = together("abc", lambda n: join(f"127.0.0.1:{port}", n))
            comms.sort(key=lambda comm: comm.rank)
            together(comms, lambda c: c.update_membership())
            # Two of three are inside; without it the operation completes.
            pending = [c.all_reduce_async(np.ones(SIZE)) for c in comms[:2]]
            first.signal(signal.SIGKILL)
            assert first.wait(30) == -signal.SIGKILL
            pending.append(comms[2].all_reduce_async(np.ones(SIZE)))
            assert [p.result(20)[0] for p in pending] == [3, 3, 3]
            # Now one dies inside an operation, while there is no coordinator.
            inputs = [np.full(SIZE, 2.0**rank) for rank in range(2)]
            pending = [
                c.all_reduce_async(array)
                for c, array in zip(comms, inputs, strict=False)
            ]
            comms[2]._crash()
            faults = [outcome(lambda p=p: p.result(20)) for p in pending]
            assert all(isinstance(fault, PeerLost) for fault in faults), faults
            assert [array[-1] for array in inputs] == [1, 2]
            before = comms[0].epoch
            processes.start("pcp.tools.cli", *flags).wait_for("listening")
            rest = list(zip(comms[:2], inputs, strict=True))
            sums = together(rest, lambda r: r[0].retry(lambda c: c.all_reduce(r[1])))
            assert [s[0] for s in sums] == [3, 3]
            assert comms[0].epoch == comms[1].epoch > before
        finally:
            for comm in comms:
                comm.close()


def test_a_frozen_coordinator_is_found_out_though_its_kernel_answers(tmp_path) -> None:
    """What it would have to decide ends with an error, and not never."""
    with Processes() as processes:
        where = processes.start("pcp.tools.cli", "coordinator", "--port", 0,
                                "--members", 3)  # fmt: skip
        address = where.wait_for("listening").rpartition(" ")[2]
        plan = FaultPlan([Fault("drop", kind=Kind.DONE, peer=0, times=9)])
        options = {"silence": 1.0, "heartbeat": 0.1, "patience": 0.5}
        comms = together("abc", lambda n: join(address, n, **options))
        comms.sort(key=lambda comm: comm.rank)
        try:
            together(comms, lambda c: c.update_membership())
            where.signal(signal.SIGSTOP)
            comms[2]._group._faults = plan
            arrays = [np.ones(SIZE) for _ in comms]
            pending = [
                c.all_reduce_async(array, timeout=20)
                for c, array in zip(comms, arrays, strict=True)
            ]
            assert pending[1].result(20)[0] == 3  # has all votes
            eventually(lambda: plan.fired > 0)
            comms[2]._crash()
            fault = outcome(lambda: pending[0].result(30))
            assert isinstance(fault, PeerLost)
            assert (arrays[0] == 1).all()
            with pytest.raises(PeerLost, match="no coordinator"):
                comms[0].update_membership(timeout=10)
        finally:
            for comm in comms:
                comm.close()


def test_a_doubt_after_the_coordinator_was_given_up_ends_with_an_error() -> None:
    """Nobody can be asked any more when the last vote fails to come."""
    plan = FaultPlan([Fault("drop", kind=Kind.DONE, peer=0, times=9)])
    with Coordinator.listen("127.0.0.1:0", first=2) as where:
        comms = together("ab", lambda n: join(where.address, n, patience=0.3))
        comms.sort(key=lambda comm: comm.rank)
        try:
            together(comms, lambda c: c.update_membership())
            comms[1]._group._faults = plan
            arrays = [np.ones(SIZE) for _ in comms]
            pending = [
                c.all_reduce_async(array, timeout=60)
                for c, array in zip(comms, arrays, strict=True)
            ]
            assert pending[1].result(20)[0] == 2  # has all votes
            where.close()
            eventually(lambda: comms[0]._renewal.coordination.fault is not None, 20)
            assert not pending[0].done()  # the other lives: no doubt so far
            comms[1]._crash()
            assert isinstance(outcome(lambda: pending[0].result(30)), PeerLost)
            assert (arrays[0] == 1).all()
        finally:
            for comm in comms:
                comm.close()
