"""The coordinator of an elastic group: `membership` behind a listening endpoint.

    with Coordinator.listen("0.0.0.0:48148") as coordinator:
        ...

A coordinator moves no tensors. When it dies the members go on; they connect to the next
coordinator at its address, and report their group to it.
"""

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp.errors import ConfigError, ProtocolError, RuntimeFault
from pcp.runtime.collectives.metrics import Metric, gauge
from pcp.runtime.group.group_endpoint import GroupEndpoint
from pcp.runtime.group.incarnation import Incarnation
from pcp.runtime.group.membership import Membership, Past, Phase, SendMessage
from pcp.runtime.transport.address import parse_address
from pcp.runtime.transport.frame import Frame, Header, Kind, json_payload, parse_json
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.tcp import TcpLink

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

PURPOSE = "membership"
MAX_CONTROL = 1 << 20
_MAX_COUNT = 1 << 62
"""A bound on counts from members: far above real ones, below a frame's limit."""
_UNKNOWN_SECONDS = 0.5
_log = logging.getLogger(__name__)


class Coordinator:
    """Serves one group on an endpoint. Make one with `Coordinator.listen`."""

    def __init__(
        self,
        endpoint: GroupEndpoint,
        *,
        first: int = 1,
        heartbeat: float = 0.5,
        silence: float = 5.0,
        state: Path | None = None,
        owns: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.silence = silence
        # Members answer heartbeats: a late one must not make all members silent.
        self._heartbeat = min(heartbeat, silence / 4)
        self._owns = owns
        self._incarnation = Incarnation(state)
        grace = _grace(self._incarnation, silence)
        self._state = Membership(
            first=first, incarnation=self._incarnation.number, settled=grace == 0.0
        )
        self._links: dict[str, TcpLink] = {}
        self._names: dict[Link, str] = {}
        self._absent: dict[str, float] = {}
        self._closed = False
        endpoint.greet(PURPOSE, self._greet)
        endpoint.loop.call(self._tick)
        if grace:
            endpoint.loop.call(self._settle_after, grace)

    @classmethod
    def listen(
        cls,
        address: str = "127.0.0.1:48148",
        *,
        first: int = 1,
        heartbeat: float = 0.5,
        silence: float = 5.0,
        state: Path | None = None,
        key: bytes | str | None = None,
        tls: "Tls | None" = None,
    ) -> "Coordinator":
        """A coordinator of its own at `address`.

        The first group is formed as soon as `first` members have joined. A
        member whose link is silent for `silence` seconds is dead; one whose
        connection breaks has as long to come back. `state` is a file that counts
        how often this group's coordinator was started, so that epochs grow, and
        which one coordinator at a time locks; without it epochs grow with the clock.
        Newcomers do not form a group before the grace is over, in which members of a
        present group come back: `silence` when `state` counts an earlier coordinator,
        half a second without a `state`. `key` and `tls` are as in
        `Endpoint.listen`.
        """
        # Members have the coordinator's address: it advertises none.
        endpoint = GroupEndpoint.listen(
            address, advertise=address, key=key, tls=tls, purposes=[PURPOSE]
        )
        try:
            return cls(
                endpoint,
                first=first,
                heartbeat=heartbeat,
                silence=silence,
                state=state,
                owns=True,
            )
        except BaseException:
            endpoint.close()
            raise

    @property
    def address(self) -> str:
        """The address `host:port` of its listener."""
        return self.endpoint.listening

    def status(self) -> dict[str, Any]:
        """Phase, epoch, members of the group by rank, and members that wait."""

        def read() -> dict[str, Any]:
            state = self._state
            return {
                "phase": state.phase.value,
                "epoch": state.epoch,
                "members": state.survivors,
                "waiting": state.waiting,
            }

        return self.endpoint.loop.ask(read)

    def collect(self) -> list[Metric]:
        """Gauges of the group and counts of messages, for an `Exporter`."""
        status = self.status()
        members, waiting = len(status["members"]), len(status["waiting"])
        stable = status["phase"] == Phase.STABLE.value
        return [
            gauge("pcp_group_members", "members of the group", members),
            gauge("pcp_group_waiting", "who has asked to be let in", waiting),
            gauge("pcp_group_epoch", "rises with every group", status["epoch"]),
            gauge("pcp_group_stable", "1 while no group is being formed", stable),
            *self.endpoint.telemetry.metrics(),
        ]

    def close(self) -> None:
        """Stop serving; the members go on without."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self.endpoint.loop.closed:
                self.endpoint.loop.ask(self._shut)
            if self._owns:
                self.endpoint.close()
        finally:
            self._incarnation.close()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Connections. All of it in the loop's thread.

    def _greet(self, link: TcpLink, hello: dict[str, Any]) -> None:
        name, address, past = (hello.get(k) for k in ("name", "address", "past"))
        if not (
            isinstance(name, str)
            and isinstance(address, str)
            and isinstance(past, dict)
        ):
            link.refuse("a member says its name, its address and its past")
            return
        try:
            what = _past(past)
            parse_address(address)
        except (TypeError, ValueError, ConfigError) as error:
            link.refuse(f"a past or an address that is none: {error}")
            return
        if (old := self._links.get(name)) is not None:
            if old.alive and not what.epoch and not what.formed:
                link.refuse(f"a member named {name} is here already")
                return
            del self._links[name]
            self._names.pop(old, None)
            old.sever()
        link.sink = self
        link.send(Frame(Kind.WELCOME))
        self._links[name], self._names[link] = link, name
        self._absent.pop(name, None)
        self._tell(self._state.resume(name, address, what))
        self._note_absent()

    def place(self, link: Link, header: Header) -> memoryview:
        """Memory for a control message; ProtocolError for other frames."""
        if header.kind is not Kind.CONTROL or header.length > MAX_CONTROL:
            raise ProtocolError(f"{header.kind.name} to a coordinator")
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Handle a message of a member."""
        name = self._names.get(link)
        if name is None or name not in self._state.members:
            return
        if header.kind is Kind.BYE:
            self._gone(name)
            return
        if header.kind is Kind.CONTROL:
            facts = parse_json(payload)
            try:
                self._tell(self._handle(name, facts))
            except (KeyError, TypeError, ValueError) as error:
                raise ProtocolError(f"{name} said {facts}: {error!r}") from error
        elif header.kind is not Kind.PING:
            raise ProtocolError(f"{header.kind.name} to a coordinator")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Note that a connection broke; the member may come back."""
        name = self._names.pop(link, None)
        if name is not None and self._links.get(name) is link:
            del self._links[name]
            self._note_absent()

    def _handle(self, name: str, facts: dict[str, Any]) -> list[SendMessage]:
        state = self._state
        what = facts["what"]
        match what:
            case "vote":
                return state.vote(name, broken=bool(facts["broken"]))
            case "unvote":
                return state.unvote(name)
            case "who":
                return [state.who(name)]
            case "formed":
                return state.formed(name, int(facts["epoch"]))
            case "failed":
                return state.failed(name, int(facts["epoch"]), list(facts["lost"]))
            case "ask" | "answer":
                tag, seq = facts["key"]
                key, epoch = (int(tag), int(seq)), int(facts["epoch"])
                if what == "ask":
                    return state.ask(name, epoch, key)
                return state.answer(name, epoch, key, bool(facts["done"]))
        raise ValueError(f"unknown message {what!r}")

    def _tell(self, sends: list[SendMessage]) -> None:
        for send in sends:
            self.endpoint.telemetry.count(f"told {send.what}")
            link = self._links.get(send.to)
            if link is not None:
                facts = {"what": send.what, **send.facts}
                link.send(Frame(Kind.CONTROL, payload=json_payload(facts)))
            if send.what in ("prepare", "refused", "dead"):
                _log.info("%s to %s: %s", send.what, send.to, send.facts)

    def _note_absent(self) -> None:
        """Begin the grace of members of the group that have no connection."""
        now = time.monotonic()
        for name in self._state.members:
            if name not in self._links:
                self._absent.setdefault(name, now + self.silence)

    def _gone(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            self._names.pop(link, None)
            link.close(flush=1.0)
        self._absent.pop(name, None)
        self._tell(self._state.died(name))
        self._note_absent()

    def _tick(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        asleep = self.endpoint.loop.suspended
        for name, link in list(self._links.items()):
            if now - link.last_sent >= self._heartbeat:
                link.send(Frame(Kind.PING))
            if asleep:
                link.last_heard = max(link.last_heard, now - self._heartbeat)
            elif now - link.last_heard > self.silence:
                link.sever()
                self._gone(name)
        for name, until in list(self._absent.items()):
            if now > until:
                self._gone(name)
        self.endpoint.loop.later(self._heartbeat / 2, self._tick)

    def _settle_after(self, seconds: float) -> None:
        self.endpoint.loop.later(seconds, lambda: self._tell(self._state.settle()))

    def _shut(self) -> None:
        for link in self._links.values():
            link.close(flush=0.5)
        self._links.clear()
        self._names.clear()


def _grace(incarnation: Incarnation, silence: float) -> float:
    """The grace (s) in which members of a present group come back."""
    if not incarnation.known:
        return min(_UNKNOWN_SECONDS, silence)
    return silence if incarnation.number else 0.0


def _past(said: dict[str, Any]) -> Past:
    """The past in a member's greeting; TypeError or ValueError if it is none."""
    past = Past(**said)
    for name in ("epoch", "formed", "prepared", "turn"):
        value = getattr(past, name)
        if type(value) is not int or not 0 <= value < _MAX_COUNT:
            raise ValueError(f"{name} is {value!r}")
    if not isinstance(past.group, dict):
        raise ValueError("a group is addresses by name")
    if not all(isinstance(address, str) for address in past.group.values()):
        raise ValueError("an address is text")
    if not isinstance(past.gone, list) or not all(
        isinstance(name, str) for name in past.gone
    ):
        raise ValueError("who is gone is a list of names")
    return past


def greeting(name: str, address: str, past: Past) -> dict[str, Any]:
    """The first message of a member."""
    return {
        "purpose": PURPOSE,
        "name": name,
        "address": address,
        "past": asdict(past),
    }
