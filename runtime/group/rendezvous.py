"""The rendezvous of a world of fixed size: rank 0 hosts it, all members register.

A member sends its rank, the world size and the address of its endpoint; when
all are there, each gets the list of addresses and the mesh is formed from it.
A wrong member (a rank taken twice, another world size, another protocol) is
refused with the reason and the rendezvous goes on. A member that dies while
waiting fails the rendezvous for all, so that no member waits for it.
"""

import time
from dataclasses import dataclass
from typing import Any

from pcp.errors import ConfigError, PeerLost, ProtocolError, RuntimeFault, Timeout
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.group.group import Group
from pcp.runtime.group.group_endpoint import GroupEndpoint
from pcp.runtime.transport import authentication
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.blocking_io import BlockingConnection, ReadLimits
from pcp.runtime.transport.connect_warning import ConnectWarning
from pcp.runtime.transport.frame import (
    MAX_TEXT,
    Frame,
    Header,
    Kind,
    json_payload,
    parse_json,
    text,
)
from pcp.runtime.transport.link import Link, Wire
from pcp.runtime.transport.tcp import TcpLink

_LOST = 2
"""Code of a refusal because a member died; `offset` is its rank."""
_MISSING = 3
"""Code of a refusal because members are missing after the deadline."""
_VERDICT_SECONDS = 1.0
"""How long after its deadline a member waits for the list of missing ranks."""
_RETRY_SECONDS = 0.05
_PURPOSE = "rendezvous"


@dataclass
class _Member:
    link: TcpLink
    address: str


class Rendezvous:
    """The host of a rendezvous. `Rendezvous.listen("127.0.0.1:0")`, then `.address`."""

    def __init__(self, endpoint: GroupEndpoint) -> None:
        self.endpoint = endpoint
        self.address = endpoint.address
        self._world = 0
        self._members: dict[int, _Member] = {}
        self._complete = False
        endpoint.greet(_PURPOSE, self._register)

    @classmethod
    def listen(cls, address: str, **options: Any) -> "Rendezvous":
        """Host a rendezvous at `address`; options as `Endpoint.listen`."""
        return cls(GroupEndpoint.listen(address, purposes=[_PURPOSE], **options))

    def expect(self, world_size: int) -> None:
        """Accept this many members and no other number."""
        self._world = world_size

    def give_up(self, delay: float) -> None:
        """After `delay` seconds, refuse the registered members if some are missing."""
        self.endpoint.loop.ask(lambda: self.endpoint.loop.later(delay, self._give_up))

    def close(self) -> None:
        """Stop listening."""
        self.endpoint.close()

    # In the loop's thread.

    def _register(self, link: TcpLink, hello: dict[str, Any]) -> None:
        rank, world = hello.get("rank"), hello.get("world_size")
        address = hello.get("address")
        if self._complete:
            link.refuse(f"this world of {self._world} is complete")
        elif not isinstance(rank, int) or not isinstance(address, str):
            link.refuse("a registration needs a rank and an address")
        elif self._world and world != self._world:
            link.refuse(f"this world has {self._world} members, not {world}")
        elif not isinstance(world, int) or not 0 <= rank < world:
            link.refuse(f"rank {rank} does not exist in a world of {world}")
        elif rank in self._members:
            taken = self._members[rank].link.label
            link.refuse(f"rank {rank} is taken by {taken}; give each member its own")
        else:
            self._world = world
            link.sink = self
            self._members[rank] = _Member(link, address)
            if len(self._members) == self._world:
                self._finish()

    def _give_up(self) -> None:
        missing = [r for r in range(self._world) if r not in self._members]
        if self._complete or not missing:
            return
        named = ", ".join(map(str, missing))
        reason = f"rank {named} did not come; start it, or look why it does not connect"
        self._refuse_all(_MISSING, 0, reason)

    def _refuse_all(self, code: int, rank: int, reason: str) -> None:
        """Refuse all registered members, with this reason."""
        payload = reason.encode()
        for member in self._members.values():
            refusal = Frame(Kind.REFUSE, step=code, offset=rank, payload=payload)
            member.link.send(refusal)
            member.link.close(flush=2.0)
        self._members.clear()

    def _finish(self) -> None:
        self._complete = True
        addresses = [self._members[rank].address for rank in range(self._world)]
        payload = json_payload({"members": addresses})
        for member in self._members.values():
            member.link.send(Frame(Kind.WELCOME, payload=payload))
            member.link.close(flush=2.0)

    def place(self, link: Link, header: Header) -> memoryview:
        """Registered members have nothing to say."""
        raise ProtocolError(f"{header.kind.name} from a member that should wait")

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Registered members have nothing to say."""
        raise ProtocolError(f"{header.kind.name} from a member that should wait")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Refuse the other members: a registered one died."""
        if self._complete:
            return
        gone = [r for r, member in self._members.items() if member.link is link]
        for rank in gone:
            del self._members[rank]
            reason = f"rank {rank} was lost during the rendezvous: {error}"
            self._refuse_all(_LOST, rank, reason)


def meet(
    where: "str | Rendezvous",
    rank: int,
    world_size: int,
    timeout: float,
    options: ConnectionOptions,
) -> tuple[Group, list[Any]]:
    """The group of the rendezvous `where`, and the objects to close with it."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size} members does not exist")
    if rank and isinstance(where, Rendezvous):
        raise ConfigError("only rank 0 hosts the rendezvous; give its address")
    deadline = time.monotonic() + timeout
    owned: list[Any] = []
    try:
        if rank == 0:
            host = where
            if not isinstance(host, Rendezvous):
                host = Rendezvous.listen(host, key=options.key, tls=options.tls)
            owned.append(host)
            host.expect(world_size)
            host.give_up(timeout)
            where = host.address
        assert isinstance(where, str), "rank 0 knows the address by now"
        sock = _reach(where, deadline, options)
        owned.insert(0, sock)
        here = format_address(sock.getsockname()[0], 0)
        endpoint = GroupEndpoint(here, None, options)
        owned[0] = endpoint
        members = _register(sock, where, rank, world_size, endpoint.address, deadline)
        left = max(0.1, deadline - time.monotonic())
        return endpoint.form_group(0, members, rank, left), owned
    except BaseException:
        for thing in owned:
            thing.close()
        raise


def _reach(address: str, deadline: float, options: ConnectionOptions) -> Wire:
    """A connection to the host; dials until one listens there."""
    warning = ConnectWarning("rank 0")
    while True:
        try:
            left = max(0.05, deadline - time.monotonic())
            return authentication.dial(address, left, options.secret, options.tls)
        except PeerLost as error:
            if time.monotonic() > deadline:
                raise Timeout(
                    f"nobody hosts the rendezvous at {address}; start rank 0 ({error})"
                ) from error
            warning.failed(error, deadline)
            time.sleep(_RETRY_SECONDS)


def _register(
    sock: Wire,
    address: str,
    rank: int,
    world_size: int,
    endpoint: str,
    deadline: float,
) -> list[str]:
    """Register this member; the addresses of all once all have registered."""
    hello = {
        "purpose": "rendezvous",
        "rank": rank,
        "world_size": world_size,
        "address": endpoint,
    }
    late = f"the world of {world_size} did not come together at {address} in time"
    with BlockingConnection(sock, address) as host:
        host.send(Frame(Kind.HELLO, payload=json_payload(hello)))
        try:
            patience = ReadLimits(deadline + _VERDICT_SECONDS)
            header, payload = host.answer(patience, MAX_TEXT)
        except Timeout as error:
            raise Timeout(f"{late}; rank 0 can tell who is missing") from error
    if header.kind is Kind.REFUSE and header.step == _MISSING:
        raise Timeout(f"{late}: {text(payload)}")
    if header.kind is Kind.REFUSE and header.step == _LOST:
        raise PeerLost(text(payload), peer=header.offset)
    if header.kind is Kind.REFUSE:
        raise ProtocolError(f"{address} refused rank {rank}: {text(payload)}")
    members = parse_json(payload).get("members")
    if header.kind is not Kind.WELCOME or not isinstance(members, list):
        raise ProtocolError(f"{address} answered with {header.kind.name}")
    return [str(member) for member in members]
