"""A member of a group in its own process, made to die at a chosen frame.

Run with one JSON argument: {"do": what, "kill": fault fields or null, ...}.
Prints its endpoint's address, reads the address list from standard input. With
"asks" it says when it is about to die, and does so when it is told anything. With
"trees" its small group agrees along a tree.
"""

import json
import os
import signal
import sys

import numpy as np

from pcp.runtime.collectives import agreement, reduction
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.transport import fault_injection
from pcp.runtime.transport.blocking_io import SEND_SECONDS, BlockingConnection
from pcp.runtime.transport.fault_injection import Fault, FaultPlan, Target
from pcp.runtime.transport.frame import Frame, Kind
from pcp.runtime.transport.link import Link

SIZE = 200_000
"""Elements of the arrays that are reduced: several segments per chunk."""


def contribution(rank: int, size: int = SIZE) -> np.ndarray:
    """What a rank brings: its own values, the same in every process."""
    return np.random.default_rng(rank).normal(size=size).astype(np.float32)


def all_reduce(comm: Communicator) -> None:
    """One reduction."""
    comm.all_reduce(contribution(comm.rank))


def thrice(comm: Communicator) -> None:
    """Three reductions; the later ones go through memory, where there is some."""
    for _ in range(3):
        all_reduce(comm)


def thrice_larger(comm: Communicator) -> None:
    """The same of arrays that are copied piece by piece."""
    for _ in range(3):
        comm.all_reduce(contribution(comm.rank, 4 * SIZE))


def thrice_straight(comm: Communicator) -> None:
    """Three reductions into new arrays, small ones: each member makes all of it."""
    for _ in range(3):
        comm.all_reduced(contribution(comm.rank))


def thrice_straight_larger(comm: Communicator) -> None:
    """The same of arrays whose results the members write for each other."""
    for _ in range(3):
        comm.all_reduced(contribution(comm.rank, 4 * SIZE))


def several(comm: Communicator) -> None:
    """Four reductions under way at once."""
    arrays = [contribution(comm.rank) for _ in range(4)]
    for pending in [comm.all_reduce_async(array) for array in arrays]:
        pending.result()


def param_sync(comm: Communicator) -> None:
    """State that this member, the newest, hands to the others."""
    comm.param_sync({"w": contribution(comm.rank)}, revision=9, source="elected")


def idle(comm: Communicator) -> None:
    """Be there until standard input ends."""
    sys.stdin.read()


def serve_snapshot(endpoint: Endpoint, kill_at: int) -> None:
    """Serve a snapshot and die at its n-th segment."""
    plain, sent = BlockingConnection.send, [0]

    def counting(
        self: BlockingConnection, frame: Frame, timeout: float = SEND_SECONDS
    ) -> None:
        if frame.kind is Kind.DATA:
            sent[0] += 1
            if sent[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        plain(self, frame, timeout)

    BlockingConnection.send = counting
    endpoint.serve_snapshot(lambda: (3, {"w": np.ones(2_000_000)}))


def die_when_told(fault: Fault, group: Target, link: Link, frame: Frame) -> None:
    """What "asks" makes of a kill: the loop stands still until then."""
    say("dying")
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """As the module says."""
    request = json.loads(sys.argv[1])
    if request.get("trees"):
        agreement.FEW_MEMBERS = reduction.FEW_MEMBERS = 1
    if request["do"] == "connect":
        say(str(os.getpid()))
        Communicator.connect(
            request["address"], rank=request["rank"], world_size=request["world_size"]
        )
        return
    kill = request.get("kill")
    plan = None
    if kill:
        kill["kind"] = Kind[kill["kind"]]
        plan = FaultPlan([Fault("kill", **kill)])
    if request.get("asks"):
        fault_injection._ACTIONS["kill"] = die_when_told
    endpoint = Endpoint.listen("127.0.0.1:0", faults=plan)
    if request["do"] == "snapshot":
        serve_snapshot(endpoint, request["kill_at"])
    say(endpoint.address)
    members = json.loads(sys.stdin.readline() or "[]")
    if not members:
        return
    comm = endpoint.form(1, members, members.index(endpoint.address), 20)
    say("formed")
    globals()[request["do"]](comm)
    comm.close()
    endpoint.close()


def say(text: str) -> None:
    """Tell the test."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
