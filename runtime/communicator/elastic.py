"""A member of a group whose members come and go.

    comm = Communicator.join("coordinator:48148")
    while training:
        comm.update_membership()              # between two steps
        try:
            comm.all_reduce(gradient, "mean")
        except (PeerLost, CollectiveAborted):
            continue                          # the input is as it was: try again

`comm.retry(step)` does the same. An operation happens on all survivors or on
none; see `membership` for how that is decided.
"""

import queue
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    PeerLost,
    RuntimeFault,
    Timeout,
    UsageError,
)
from pcp.runtime.collectives.operation import Operation, Pending
from pcp.runtime.communicator.communicator import Communicator, Seconds, seconds
from pcp.runtime.group.coordinator_client import Coordination
from pcp.runtime.group.endpoint import Endpoint
from pcp.runtime.transport import link
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.striped import Streams

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

T = TypeVar("T")
_FORM_SECONDS = 30.0


class ElasticCommunicator(Communicator):
    """A communicator whose group is renewed. Made by `Communicator.join`."""

    def __init__(
        self, endpoint: Endpoint, coordination: Coordination, timeout: float
    ) -> None:
        self._endpoint = endpoint
        self._coordination = coordination
        self._join_timeout = timeout
        self._formed: Communicator | None = None
        """Of a newer epoch, and complete; it waits for the coordinator's go."""
        first = self._renew(time.monotonic() + timeout)
        super().__init__(first._group, timeout=timeout, owned=[coordination, endpoint])
        self._counters = first._counters  # forming used some up
        self._fresh = True

    @property
    def names(self) -> list[str]:
        """The members' names by rank."""
        return list(self._coordination.agent.names)

    def update_membership(self, timeout: Seconds = None) -> bool:
        """Renew the group: newcomers enter, the dead are out. True if it changed.

        To be called by all members between two steps; blocks until all have. The
        first call after `join`, or at the start of a step that `retry` makes again,
        returns at once: the group has just been renewed.
        UsageError while operations of this member are under way. Timeout when
        the others do not come; the call can be repeated.
        """
        deadline = time.monotonic() + self._patience(timeout)
        loop, agent = self._endpoint.loop, self._coordination.agent
        if self._closed:
            raise CollectiveAborted("this member closed its communicator")
        fresh, self._fresh = self._fresh, False
        if fresh and self._group.fault is None:
            return True
        self._drain(deadline)
        epoch = self.epoch
        self._coordination.forget_old_news()
        if votes := self._formed is None:  # else this member's last vote still counts
            loop.ask(agent.vote)
        try:
            renewed = self._renew(deadline)
        except Timeout:
            if not votes or self._coordination.withdraw():
                raise
            renewed = self._renew(time.monotonic())  # it has just been answered
        if renewed is None:
            return False
        with self._lock:
            old, self._group = self._group, renewed._group
            self._seat = replace(renewed._seat, pool=self._seat.pool)
            self._counters, self._syncs = renewed._counters, renewed._syncs
        loop.call(old.close)
        self._group.telemetry.count("renewal")
        return self.epoch != epoch

    def retry(
        self, step: "Callable[[ElasticCommunicator], T]", timeout: Seconds = None
    ) -> T:
        """`step(self)`, again among the survivors for as long as members are lost.

        All members must call it alike. An operation of the step that completed
        has completed on all; the step is to be written so that it can be
        repeated (a single collective can).
        """
        deadline = time.monotonic() + self._patience(timeout)
        while True:
            try:
                return step(self)
            except (PeerLost, CollectiveAborted):
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    raise
                self._group.telemetry.count("retry")
                self.update_membership(left)
                # That was this member's part: newcomers ask for none either.
                self._fresh = True

    # Inside.

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        self._fresh = False
        return super()._post(operation, tag, turn)

    def _drain(self, deadline: float) -> None:
        """Operations of a broken group end by themselves, soon."""
        loop = self._endpoint.loop
        while not loop.ask(lambda: self._group.idle):
            if self._group.fault is None:
                raise UsageError(
                    "operations are under way; wait for their results before the "
                    "group is renewed"
                )
            if time.monotonic() > deadline:
                raise Timeout("operations of the old group did not end in time")
            time.sleep(0.002)

    def _renew(self, deadline: float) -> Any:
        """Form what the coordinator prepares, until it says go.

        The new communicator, or None when the group stays as it is. What was formed
        when time was up is kept: the others may have been told to go on with it.
        """
        while True:
            formed = self._formed
            if formed is not None and formed.epoch == self._agreed():
                self._formed = None
                return formed
            what, facts = self._next(deadline)
            if what == "go" and formed is None and facts["epoch"] == self._agreed():
                return None
            if what == "prepare":
                self._formed = self._form(facts, deadline) or formed

    def _agreed(self) -> int:
        return self._coordination.agent.epoch

    def _next(self, deadline: float) -> tuple[str, dict[str, Any]]:
        coordination = self._coordination
        left = deadline - time.monotonic()
        try:
            what, facts = coordination.renewals.get(timeout=max(0.01, left))
        except queue.Empty:
            raise Timeout(
                f"the group was not renewed in time: not all members of epoch "
                f"{self._agreed()} asked for it"
            ) from None
        if what == "fault":
            coordination.renewals.put((what, facts))
            assert coordination.fault is not None
            raise type(coordination.fault)(str(coordination.fault))
        return what, facts

    def _form(self, facts: dict[str, Any], deadline: float) -> Communicator | None:
        agent, loop = self._coordination.agent, self._endpoint.loop
        epoch, names = int(facts["epoch"]), list(facts["names"])
        addresses, rank = list(facts["addresses"]), names.index(agent.name)
        patience = min(_FORM_SECONDS, max(0.05, deadline - time.monotonic()))
        try:
            comm = self._endpoint.form(epoch, addresses, rank, patience)
        except (CollectiveAborted, ConfigError):
            return None  # a newer epoch is on its way
        except RuntimeFault as error:
            peer = error.peer if isinstance(error, PeerLost) else None
            lost = [] if peer is None else [names[peer]]
            loop.ask(lambda: agent.has_not_formed(epoch, lost))
            return None
        loop.ask(lambda: agent.has_formed(comm._group, names, addresses))
        return comm


def join(
    address: str,
    *,
    name: str | None,
    listen: str | None,
    advertise: str | None,
    timeout: float | timedelta,
    heartbeat: float,
    silence: float,
    patience: float,
    faults: FaultPlan | None,
    shared_memory: bool,
    key: bytes | str | None,
    streams: Streams = "auto",
    tls: "Tls | None" = None,
) -> ElasticCommunicator:
    """The communicator that `Communicator.join` gives."""
    limit = seconds(timeout)
    deadline = time.monotonic() + limit
    name = name or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    if listen is None:
        listen = link.format_address(link.own_address(address), 0)
    endpoint = Endpoint.listen(
        listen,
        advertise=advertise,
        heartbeat=heartbeat,
        silence=silence,
        faults=faults,
        shared_memory=shared_memory,
        key=key,
        streams=streams,
        tls=tls,
    )
    coordination = Coordination(endpoint, address, name, patience)
    try:
        coordination.start(deadline)
        return ElasticCommunicator(endpoint, coordination, limit)
    except BaseException:
        coordination.close()
        endpoint.close()
        raise
