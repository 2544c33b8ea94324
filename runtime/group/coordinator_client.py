"""A member's connection to the coordinator, and the messages over it.

The member connects again when the connection breaks, or when the coordinator is silent,
until the member's patience (s) ends. No message is lost meanwhile: a member that
connects again sends its past (`MembershipClient.past`), and repeats the questions
without an answer.
"""

import queue
import threading
import time
from typing import Any

from pcp.errors import (
    CollectiveAborted,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    Timeout,
)
from pcp.runtime.group.coordinator import MAX_CONTROL, greeting
from pcp.runtime.group.group_endpoint import GroupEndpoint
from pcp.runtime.group.membership_client import MembershipClient, PresentMembers
from pcp.runtime.transport import authentication
from pcp.runtime.transport.connect_warning import ConnectWarning
from pcp.runtime.transport.frame import (
    Frame,
    Header,
    Kind,
    json_payload,
    parse_json,
    text,
)
from pcp.runtime.transport.link import Link, Wire, unanswered
from pcp.runtime.transport.tcp import TcpLink

_REDIAL_SECONDS = 0.2
_WITHDRAW_SECONDS = 1.0
"""How long a coordinator may take to answer that a vote was taken back."""
_LOOK_SECONDS = 0.002
"""How often a thread looks for an answer."""
_LEAST_SILENCE = 2.0
"""The least silence (s) of a lost coordinator: a busy one sends few heartbeats."""


class Coordination:
    """The connection to the coordinator, made again when it breaks."""

    def __init__(
        self, endpoint: GroupEndpoint, address: str, name: str, patience: float
    ) -> None:
        self.address = address
        self.fault: RuntimeFault | None = None
        """The fault when the coordinator is lost for good; None before."""
        self.renewals: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.agent = MembershipClient(name, self._say, self._renewal)
        self._endpoint = endpoint
        self._loop = endpoint.loop
        self._patience = patience
        self._silence = max(_LEAST_SILENCE, endpoint.options.silence)
        self._link: TcpLink | None = None
        self._until: float | None = None
        """When patience ends (monotonic); None while the coordinator is connected."""
        self._closed = threading.Event()

    def start(self, deadline: float) -> None:
        """Connect for the first time; raises the reason when that fails."""
        self._redial(deadline)
        if self.fault is not None:
            raise self.fault
        self._loop.call(self._listen)

    def close(self) -> None:
        """Leave: the other members go on, and a renewal of this member ends."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self.fault is None:
            self.fault = CollectiveAborted("this member closed its communicator")
            self.renewals.put(("fault", {}))

        def leave() -> None:
            if self._link is not None:
                self._link.send(Frame(Kind.BYE))
                self._link.close(flush=1.0)

        self._loop.ask(leave)

    def withdraw(self) -> bool:
        """Take this member's vote back; False when it was answered already."""
        agent, until = self.agent, time.monotonic() + _WITHDRAW_SECONDS
        self._loop.ask(agent.unvote)
        while agent.voting and agent.withdrawing and self._link is not None:
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        return self._loop.ask(agent.unvoted)

    def present(self, patience: float) -> PresentMembers | None:
        """The members that the coordinator knows; None if it is silent."""
        agent, until = self.agent, time.monotonic() + patience
        self._loop.ask(agent.ask_who)
        while (found := agent.present) is None and time.monotonic() < until:
            if self.fault is not None:
                break
            time.sleep(_LOOK_SECONDS)
        return found

    def forget_old_news(self) -> None:
        """Drop messages about a renewal that is over; a prepared renewal goes on."""
        news = []
        while not self.renewals.empty():
            news.append(self.renewals.get_nowait())
        for what, facts in news:
            if what == "fault" or int(facts["epoch"]) > self.agent.epoch:
                self.renewals.put((what, facts))

    # The link's sink, in the loop's thread.

    def place(self, link: Link, header: Header) -> memoryview:
        """Memory for a message or a refusal."""
        known = (Kind.CONTROL, Kind.REFUSE)
        if header.kind not in known or header.length > MAX_CONTROL:
            raise ProtocolError(f"the coordinator sent {header.kind.name}")
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Handle a message of the coordinator."""
        match header.kind:
            case Kind.CONTROL:
                facts = parse_json(payload)
                self.agent.hear(str(facts.pop("what", "")), facts)
            case Kind.WELCOME:
                self._until = None
                self.agent.ask_again()
            case Kind.REFUSE:
                self._give_up(ProtocolError(f"refused: {text(payload)}"))
            case Kind.PING:
                link_sent = time.monotonic() - link.last_sent
                if link_sent > 0.1:
                    link.send(Frame(Kind.PING))
            case _:
                raise ProtocolError(f"the coordinator sent {header.kind.name}")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Dial again: the coordinator is gone, perhaps to be started again."""
        if link is not self._link:
            return
        self._link = None
        if self._closed.is_set() or self.fault is not None:
            return
        # A listener that accepted and sent no byte is not dialled without pause.
        welcomed = self._until is None
        if self._until is None:
            self._until = time.monotonic() + self._patience
        if time.monotonic() > self._until:
            told = PeerLost(f"no coordinator at {self.address}: {error}")
            silent = isinstance(error, PeerLost) and not welcomed
            self._give_up(unanswered(told) if silent else told)
            return
        again = (self._until, 0.0 if welcomed else _REDIAL_SECONDS)
        threading.Thread(
            target=self._redial, args=again, daemon=True, name="pcp-redial"
        ).start()

    # Inside.

    def _listen(self) -> None:
        """Check the coordinator's heartbeats; without them it is lost.

        The kernel of a frozen coordinator still accepts connections.
        """
        if self._closed.is_set() or self.fault is not None:
            return
        now, link = time.monotonic(), self._link
        if link is not None and not self._loop.suspended:
            quiet = now - link.last_heard
            waited = self._until is not None and now > self._until
            if quiet > self._silence or waited:
                link.sever()
                self.lost(link, PeerLost(f"it was silent for {quiet:.1f} s"))
        self._loop.later(min(1.0, self._silence / 4), self._listen)

    def _redial(self, deadline: float, pause: float = 0.0) -> None:
        """Dial until a coordinator listens there. In a thread of its own."""
        warning = ConnectWarning("coordinator")
        while not self._closed.wait(pause):
            pause = _REDIAL_SECONDS
            left = deadline - time.monotonic()
            try:
                wait = max(0.05, min(left, 5.0))
                sock = authentication.dial(
                    self.address, wait, self._endpoint.key, self._endpoint.tls
                )
            except ProtocolError as error:
                self._give_up(error)
                return
            except (PeerLost, Timeout) as error:
                if left <= _REDIAL_SECONDS:
                    self._give_up(
                        PeerLost(f"no coordinator at {self.address}: {error}")
                    )
                    return
                warning.failed(error, deadline)
                continue
            self._loop.call(self._adopt, sock)
            return

    def _adopt(self, sock: Wire) -> None:
        if self._closed.is_set():
            sock.close()
            return
        link = TcpLink(self._loop, sock, self, f"the coordinator at {self.address}")
        self._link = link
        hello = greeting(self.agent.name, self._endpoint.address, self.agent.past())
        link.send(Frame(Kind.HELLO, payload=json_payload(hello)))

    def _say(self, what: str, facts: dict[str, Any]) -> None:
        if self.fault is not None and what == "ask":
            # Not within the asking operation, which is in the middle of a step.
            self._loop.call(self._abandon)
            return
        # Without a connection no message is lost: `past` and `ask_again` repeat it.
        if self._link is not None:
            payload = json_payload({"what": what, **facts})
            self._link.send(Frame(Kind.CONTROL, payload=payload))

    def _renewal(self, what: str, facts: dict[str, Any]) -> None:
        if what == "refused":
            self._give_up(ProtocolError(f"refused: {facts.get('reason')}"))
            return
        if what == "prepare":
            # A group that is being formed will not be agreed upon.
            epoch = int(facts["epoch"])
            self._endpoint.cancel(f"epoch {epoch} replaces it", below=epoch)
        self.renewals.put((what, facts))

    def _give_up(self, fault: RuntimeFault) -> None:
        self.fault = fault
        self._endpoint.cancel(str(fault))
        self.renewals.put(("fault", {}))
        if self.agent.group is not None:
            self._loop.call(self._abandon)

    def _abandon(self) -> None:
        """Fail the operations in doubt: without a coordinator there is no decision.

        Also operations that come into doubt later: those that lack the vote of a live
        peer, while this member counted as dead.
        """
        group = self.agent.group
        for key in group.doubtful if group is not None else ():
            assert group is not None
            group.decided(key, commit=False)
