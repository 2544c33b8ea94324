"""Renewing the group of an elastic world: `Communicator.join` makes one.

The coordinator announces the group that it prepares; the members form it and report
that; then the coordinator sends go. `membership` has the protocol.
"""

import queue
import secrets
import socket
import time
from typing import Any

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    PeerLost,
    RuntimeFault,
    Timeout,
    UsageError,
    counted,
)
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.group.coordinator_client import Coordination
from pcp.runtime.group.group import Group
from pcp.runtime.group.group_endpoint import GroupEndpoint
from pcp.runtime.transport import link
from pcp.runtime.transport.address import format_address

_FORM_SECONDS = 30.0
_ANSWER_SECONDS = 1.0


class Renewal:
    """One member's part in renewing its group."""

    def __init__(self, endpoint: GroupEndpoint, coordination: Coordination) -> None:
        self.endpoint = endpoint
        self.coordination = coordination
        self._formed: Group | None = None
        """A group of a newer epoch, fully connected, that waits for the go."""

    def close(self) -> None:
        """Leave the coordinator, and close all groups."""
        self.coordination.close()
        self.endpoint.close()

    def first(self, deadline: float) -> Group:
        """The first group of this member."""
        group = self._renew(deadline)
        assert group is not None, "a member that enters has no group that could stay"
        return group

    def renew(self, group: Group, deadline: float) -> Group | None:
        """The group that comes after `group`; None when it stays as it is.

        UsageError while operations are under way in it. Timeout when the others do not
        ask for it too; the call can be repeated.
        """
        self._drain(group, deadline)
        self.coordination.forget_old_news()
        if votes := self._formed is None:  # else this member's last vote still counts
            self.endpoint.loop.ask(self.coordination.agent.vote)
        try:
            return self._renew(deadline)
        except Timeout:
            if not votes or self.coordination.withdraw():
                raise
            return self._renew(time.monotonic())  # it has just been answered

    def _drain(self, group: Group, deadline: float) -> None:
        """Wait for the operations of a broken group, which end by themselves."""
        while not self.endpoint.loop.ask(lambda: group.idle):
            if group.fault is None:
                raise UsageError(
                    "operations are under way; wait for their results before the "
                    "group is renewed"
                )
            if time.monotonic() > deadline:
                raise Timeout("operations of the old group did not end in time")
            time.sleep(0.002)

    def _renew(self, deadline: float) -> Group | None:
        """Form the group that the coordinator prepares, until it sends go.

        None when the group stays as it is. A group that was formed at the deadline is
        kept: the other members may have got a go for it.
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
        return self.coordination.agent.epoch

    def _next(self, deadline: float) -> tuple[str, dict[str, Any]]:
        coordination = self.coordination
        left = deadline - time.monotonic()
        try:
            what, facts = coordination.renewals.get(timeout=max(0.01, left))
        except queue.Empty:
            raise Timeout(self._incomplete()) from None
        if what == "fault":
            coordination.renewals.put((what, facts))
            assert coordination.fault is not None
            raise type(coordination.fault)(str(coordination.fault))
        return what, facts

    def _incomplete(self) -> str:
        """Why there is no group in time."""
        first = self._agreed() == 0
        here = self.coordination.present(_ANSWER_SECONDS) if first else None
        if here is not None and here.wanted:
            return (
                f"the first group wants {counted(here.wanted, 'member')}, and "
                f"{len(here.waiting)} came in time: {', '.join(here.waiting)}"
            )
        told = f" ({', '.join(here.group)})" if here is not None else ""
        return (
            f"the group was not renewed in time: not all members of epoch "
            f"{self._agreed()}{told} asked for it"
        )

    def _form(self, facts: dict[str, Any], deadline: float) -> Group | None:
        agent, loop = self.coordination.agent, self.endpoint.loop
        epoch, names = int(facts["epoch"]), list(facts["names"])
        addresses, rank = list(facts["addresses"]), names.index(agent.name)
        patience = min(_FORM_SECONDS, max(0.05, deadline - time.monotonic()))
        try:
            group = self.endpoint.form_group(epoch, addresses, rank, patience)
        except (CollectiveAborted, ConfigError):
            return None  # a newer epoch is being prepared
        except RuntimeFault as error:
            peer = error.peer if isinstance(error, PeerLost) else None
            lost = [] if peer is None else [names[peer]]
            loop.ask(lambda: agent.has_not_formed(epoch, lost))
            return None
        loop.ask(lambda: agent.has_formed(group, names, addresses))
        return group


def join(
    address: str,
    deadline: float,
    options: ConnectionOptions,
    *,
    name: str | None,
    listen: str | None,
    advertise: str | None,
    patience: float,
) -> tuple[Renewal, Group]:
    """The first group at a coordinator, and the object that renews it."""
    name = name or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    if listen is None:
        listen = format_address(link.own_address(address), 0)
    endpoint = GroupEndpoint.listen(listen, advertise=advertise, **vars(options))
    coordination = Coordination(endpoint, address, name, patience)
    renewal = Renewal(endpoint, coordination)
    try:
        coordination.start(deadline)
        return renewal, renewal.first(deadline)
    except BaseException:
        renewal.close()
        raise
