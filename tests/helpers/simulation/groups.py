"""Groups of simulated processes, and the endpoints that they form them on.

An operation happens on all members of a group or on none, but for who gives up by
itself, whose outcome may be another one than the rest's
(`pcp.runtime.collectives.operation`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.simulation.network import Network
from helpers.simulation.virtual_processes import Bell, Process

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    PeerLost,
    RuntimeFault,
    Timeout,
)
from pcp.runtime.group.operation_table import AwaitedRanks


class VirtualEndpoint:
    """For `pcp.runtime.Endpoint`."""

    key = tls = None

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self.process = network, process
        self.address = self.listening = network.address()
        network.endpoints[self.address] = self
        self.newest = self._floor = -1
        self.forming: Comm | None = None
        self._comms: list[Comm] = []
        process.at_death.append(self._died)

    def serve_snapshot(self, provider: Callable[[], Any]) -> None:
        """Whoever fetches gets what this gives."""
        self.provider = provider

    def form(self, epoch: int, members: list[str], rank: int, timeout: float) -> "Comm":
        """All members come, or it fails."""
        if epoch <= self.newest:
            raise ConfigError(f"epoch {epoch} is not newer than {self.newest}")
        if epoch < self._floor:
            raise CollectiveAborted(f"epoch {self._floor} replaces {epoch}")
        self.newest = epoch
        for comm in self._comms:
            comm.close()
        group = self._network.groups.setdefault(
            (epoch, tuple(members)), Group(self._network, members)
        )
        comm = self.forming = Comm(group, rank, epoch, self.process)
        self._comms = [comm]
        group.comms[rank] = comm
        try:
            self._meet(group, comm, timeout)
            comm.timeout = timeout
            comm.gather(None)  # a barrier
        except BaseException:
            if self.process.alive:
                comm.close()
            raise
        finally:
            self.forming = None
        return comm

    def _meet(self, group: "Group", comm: "Comm", timeout: float) -> None:
        world = self._network.world
        until = world.now + timeout
        while True:
            if comm.fault is not None:
                raise comm.fault
            if world.now > until:
                raise Timeout(f"epoch {comm.epoch} was not formed in time")
            for rank, address in enumerate(group.members):
                self._look_at(rank, address, comm, group.comms.get(rank))
            if len(group.comms) == len(group.members):
                return
            world.sleep(0.02 + self._network.latency())

    def _look_at(
        self, rank: int, address: str, comm: "Comm", theirs: "Comm | None"
    ) -> None:
        other = self._network.endpoints.get(address)
        try:
            self._network.look_for(address, other)
        except PeerLost as error:
            raise PeerLost(f"rank {rank} is lost", peer=rank) from error
        assert other is not None
        if other.newest > comm.epoch or (theirs and theirs.fault):
            raise CollectiveAborted(f"rank {rank} is past epoch {comm.epoch}")

    def awaited(self) -> dict[str, AwaitedRanks]:
        """Whom the newest group waits for, if its thread is in a call."""
        found = self._comms[0].awaited() if self._comms else None
        return {} if found is None else {"": found}

    def cancel(self, reason: str, *, below: int, scope: str = "") -> None:
        """A `form` of an earlier epoch is given up, under way or still to come."""
        assert not scope, "whole replicas have one group"
        self._floor = max(self._floor, below)
        if self.forming is not None and self.forming.epoch < below:
            self.forming.fails(CollectiveAborted(reason))

    def close(self) -> None:
        """Nobody is here any more."""
        self._network.endpoints.pop(self.address, None)
        for comm in self._comms:
            comm.close()

    def _died(self) -> None:
        for comm in self._comms:
            comm.group.loses(comm.rank, PeerLost("it died", peer=comm.rank))


class Group:
    """The members of one epoch."""

    def __init__(self, network: Network, members: list[str]) -> None:
        self.network, self.members = network, list(members)
        self.comms: dict[int, Comm] = {}
        self.operations: dict[int, Operation] = {}

    def loses(self, rank: int, error: RuntimeFault) -> None:
        """Each of the others hears of it in its time."""
        for comm in self.comms.values():
            if comm.rank != rank:
                self.network.world.after(
                    self.network.latency(), lambda c=comm: c.fails(error)
                )


@dataclass
class Operation:
    """What the members have brought."""

    brought: dict[int, Any] = field(default_factory=dict)
    given_up: RuntimeFault | None = None
    happened: bool = False


class Comm:
    """For `pcp.runtime.Communicator`: one member's view of a group."""

    bytes_sent = bytes_received = 0

    def __init__(self, group: Group, rank: int, epoch: int, process: Process) -> None:
        self.group, self.rank, self.epoch = group, rank, epoch
        self.timeout = 0.0
        self.fault: RuntimeFault | None = None
        self._process, self._world = process, group.network.world
        self._bell, self._seq = Bell(self._world), 0
        self._since = self._world.now
        self._knows: Operation | None = None
        """The operation that it has the outcome of."""

    def gather(self, mine: Any) -> list[Any]:
        """What all members bring, in the order of their ranks."""
        self._process.point()
        if self.fault is not None:
            raise self.fault
        operation = self.group.operations.setdefault(self._seq, Operation())
        self._seq, self._since = self._seq + 1, self._world.now
        if operation.given_up is not None:
            self.fails(operation.given_up)
            raise operation.given_up
        operation.brought[self.rank] = mine
        if len(operation.brought) == len(self.group.members):
            self._happens(operation)
        self._bell.wait_for(
            lambda: self._knows is operation or self.fault is not None, self.timeout
        )
        self._process.point()
        if self._knows is not operation:
            error = self.fault or Timeout("an operation was not done in time")
            self.abort(str(error))
            raise error
        return [operation.brought[rank] for rank in sorted(operation.brought)]

    def _happens(self, operation: Operation) -> None:
        operation.happened = True
        for comm in self.group.comms.values():
            self._world.after(
                self.group.network.latency(), lambda c=comm: c._hears(operation)
            )

    def _hears(self, operation: Operation) -> None:
        if not isinstance(self.fault, CollectiveAborted):
            self._knows = operation
            self._bell.ring()

    def awaited(self) -> AwaitedRanks | None:
        """Whom it waits for; None: its thread is in no call."""
        group, operation = self.group, self.group.operations.get(self._seq - 1)
        brought = group.comms.keys() if operation is None else operation.brought.keys()
        if self.fault is not None or (operation and self._knows is operation):
            return None
        lacks = [rank for rank, _ in enumerate(group.members) if rank not in brought]
        return AwaitedRanks(tuple(lacks), self._world.now - self._since)

    def all_gather(self, array: np.ndarray, tag: str = "") -> np.ndarray:
        """Everybody's array."""
        return np.stack(self.gather(array))

    def param_sync(
        self, tensors: Any, *, revision: int, source: int, accept: Any = None
    ) -> "Synced":
        """All take the source's, but who does not accept it."""
        brought = self.gather({k: np.array(a) for k, a in tensors.items()})
        updated = [k for k, a in brought[source].items() if (a != tensors[k]).any()]
        theirs = [a for held in brought for k, a in held.items()]
        if any((a != theirs[0]).any() for a in theirs):
            self.gather(None)  # what has moved is compared once more
        theirs = {name: brought[source][name] for name in updated}
        if accept is not None and updated and not accept(theirs):
            return Synced((), refused=True)
        for name in updated:
            tensors[name][...] = brought[source][name]
        return Synced(tuple(updated))

    def fails(self, error: RuntimeFault) -> None:
        """The group is finished here; an operation that has happened stays so.

        Who gives up by itself may do so after its vote: then only it does.
        """
        operation = self.group.operations.get(self._seq - 1)
        if operation is not None and not operation.happened:
            operation.given_up = operation.given_up or error
        elif operation is not None and isinstance(error, PeerLost):
            self._knows = operation
        self.fault = self.fault or error
        self._bell.ring()

    def abort(self, reason: str) -> None:
        """Give up, on all members."""
        if self.fault is None:
            error = CollectiveAborted(reason)
            self.fails(error)
            self.group.loses(self.rank, error)

    def close(self, timeout: float | None = None) -> None:
        """Leave: those who need this member are told.

        Calls wait for their results here: nothing is under way that could be awaited.
        """
        if self.fault is None:
            self.fault = CollectiveAborted("this member closed its communicator")
            self._bell.ring()
            left = PeerLost("it left the group", peer=self.rank)
            self.group.loses(self.rank, left)


@dataclass(frozen=True)
class Synced:
    """What a synchronisation did here."""

    updated: tuple[str, ...]
    refused: bool = False
