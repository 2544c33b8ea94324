"""Mesh formation: the links of one group, made at its beginning.

The member with the higher rank dials. Its greeting names the epoch, its rank
and a digest of the member list; the other side answers WELCOME, or REFUSE with a
reason. While members are missing their addresses are probed, so that a dead one is
found long before the deadline.
"""

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from pcp.errors import (
    CollectiveAborted,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    Timeout,
)
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.group.group import Group
from pcp.runtime.group.operation_table import AwaitedRanks
from pcp.runtime.transport import authentication
from pcp.runtime.transport.frame import (
    MAX_TEXT,
    Frame,
    Header,
    Kind,
    json_payload,
    text,
)
from pcp.runtime.transport.link import Link, Wire, dial, unanswered
from pcp.runtime.transport.shared_memory import shared
from pcp.runtime.transport.striped import (
    MAX_STREAMS,
    Streams,
    StripedLink,
    streams_over,
    with_reserve,
)
from pcp.runtime.transport.tcp import TcpLink

EPOCH_OVER = 1
"""Code of a refusal because a newer epoch has begun."""
_PROBE_SECONDS = 0.5
_LATE_SECONDS = 5.0
"""A thread that has not looked around for so long does not wait: it hangs."""


class MeshFormation:
    """The formation of one group.

    `wait` runs in the caller's thread, the rest in the loop's.
    """

    def __init__(
        self,
        group: Group,
        members: Sequence[str],
        options: ConnectionOptions,
        scope: str = "",
    ) -> None:
        self.group, self.scope = group, scope
        self._options = options
        self._streams: Streams = options.streams
        self._links: dict[int, dict[int, TcpLink]] = {}
        self._counts: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._share = options.shared_memory
        self.epoch = group.epoch
        self._members = list(members)
        self._digest = members_digest(members)
        self._dialled: dict[Link, int] = {}
        self._done: Future[None] = Future()
        self._began = self._looked = time.monotonic()
        self._dial_under_way: Future[Wire] | None = None
        if group.world_size == 1:
            self._done.set_result(None)

    def wait(self, deadline: float) -> None:
        """Dial, then wait until the mesh is whole; raises the reason when it is not."""
        try:
            for peer in range(self.group.rank):
                self._dial(peer, deadline)
            while not self._settled(_PROBE_SECONDS):
                self._look_around(deadline)
            self._done.result()
        except BaseException:
            self.group.loop.call(self._abandon)
            raise

    def _abandon(self) -> None:
        """Close the links of the group, and the connections that wait to be links."""
        for streams in self._links.values():
            for link in streams.values():
                link.close()
        self._links.clear()
        self.group.close()

    def fail(self, error: RuntimeFault) -> None:
        """End the formation with this error."""
        if not self._done.done():
            self._done.set_exception(error)

    def cancel(self, error: RuntimeFault) -> None:
        """End it with this error, also where the mesh is whole and all members meet."""
        if self._done.done():
            self.group.abort(error)
        else:
            self.fail(error)

    def greet(self, link: TcpLink, hello: dict[str, Any]) -> None:
        """Handle the greeting of a member with a higher rank."""
        rank = hello.get("rank")
        group = self.group
        if hello.get("members") != self._digest:
            link.refuse(f"epoch {self.epoch} has other members here")
        elif not isinstance(rank, int) or not group.rank < rank < group.world_size:
            link.refuse(f"rank {rank!r} does not dial rank {group.rank}")
        elif rank in group.links:
            link.refuse(f"rank {rank} is connected already")
        elif (theirs := hello.get("checksum", "xxh3")) != self._options.link_checksum:
            link.refuse(
                f"rank {rank} has checksum={theirs!r}, rank {group.rank} checksum="
                f"{self._options.link_checksum!r}; give all members the same"
            )
        elif not self._agrees(rank, hello.get("streams", 1)):
            link.refuse(
                f"rank {rank} has streams={hello.get('streams', 1)!r}, rank "
                f"{group.rank} streams={self._streams}; give all members the same"
            )
        else:
            used = hello.get("used")
            if type(used) is int and 1 <= used < self._counts[rank]:
                self._used[rank] = used
            self._greet_stream(rank, link, hello.get("lane", 0))

    def _agrees(self, rank: int, streams: object) -> bool:
        """Whether a member may have so many streams; the dialler has measured."""
        if type(streams) is not int or not 1 <= streams <= MAX_STREAMS:
            return False
        if self._streams not in ("auto", streams):
            return False
        return self._counts.setdefault(rank, streams) == streams

    def _greet_stream(self, rank: int, link: TcpLink, stream: object) -> None:
        """Add one stream of a member; the first is welcomed when all are there."""
        streams = self._links.setdefault(rank, {})
        count = self._counts[rank]
        if not isinstance(stream, int) or stream in streams or not 0 <= stream < count:
            link.refuse(f"rank {rank} has no connection {stream!r} to make")
            return
        streams[stream] = link
        if len(streams) == count:
            streams[0].send(Frame(Kind.WELCOME))
            self._admit(rank)

    # The sink of a dialled link, until the link is the group's.

    def place(self, link: Link, header: Header) -> memoryview:
        """Memory for a refusal."""
        if header.kind is not Kind.REFUSE or header.length > MAX_TEXT:
            raise ProtocolError(f"{link.label} answered with {header.kind.name}")
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Handle the answer to our greeting."""
        rank = self._dialled[link]
        if header.kind is Kind.WELCOME:
            self._admit(rank)
        elif header.kind is Kind.REFUSE:
            message = f"rank {rank} at {link.label} refused: {text(payload)}"
            over = header.step == EPOCH_OVER
            self.fail((CollectiveAborted if over else ProtocolError)(message))
        else:
            raise ProtocolError(f"{link.label} answered with {header.kind.name}")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """End the formation: a dialled peer closed before it answered."""
        rank = self._dialled[link]
        if isinstance(error, ProtocolError):
            self.fail(ProtocolError(f"rank {rank} at {link.label}: {error}"))
            return
        told = PeerLost(f"rank {rank} is lost: {error}", peer=rank)
        self.fail(unanswered(told))

    def _admit(self, rank: int) -> None:
        streams = self._links[rank]
        if len(streams) < self._counts[rank]:
            raise ProtocolError(f"rank {rank} welcomes connections it has not got")
        if not all(link.alive for link in streams.values()):
            # The link broke while it waited, with another sink.
            lost = f"rank {rank} is lost: its connection broke before the group formed"
            self.fail(PeerLost(lost, peer=rank))
            return
        del self._links[rank]
        for link in streams.values():
            link.unchecked = self._options.link_checksum == "none"
        first = streams[0]
        first.read_ahead()
        if len(streams) > 1:
            links = [streams[stream] for stream in range(len(streams))]
            used = self._used.get(rank) or None
            self.group.admit(rank, StripedLink(self.group.loop, links, used))
        else:
            self.group.admit(rank, shared(first) if self._share else first)
        if len(self.group.links) == self.group.world_size - 1 and not self._done.done():
            self._done.set_result(None)

    def _dial(self, peer: int, deadline: float) -> None:
        """Make all streams to a member; the first greets last and gets the answer."""
        sock = self._reach(peer, deadline)
        try:
            self._dial_streams(peer, deadline, sock)
        except BaseException:
            sock.close()
            raise
        self._greet_as(peer, 0, sock)

    def _dial_streams(self, peer: int, deadline: float, first: Wire) -> None:
        count = self._streams
        if count == "auto":
            at_first = streams_over(first)
            count = with_reserve(at_first)
            self._used[peer] = at_first - 1
        self._counts[peer] = count
        if count > 1:
            # Each handshake takes round trips; all of them together take as long.
            with ThreadPoolExecutor(count - 1, "pcp-dial") as pool:
                pending = [
                    pool.submit(self._dial_stream, peer, stream, deadline)
                    for stream in range(1, count)
                ]
            for future in pending:
                future.result()

    def _dial_stream(self, peer: int, stream: int, deadline: float) -> None:
        self._greet_as(peer, stream, self._reach(peer, deadline))

    def _reach(self, peer: int, deadline: float) -> Wire:
        """A connection; raises at once when the formation ends meanwhile.

        A dial to a machine that is gone takes minutes to fail.
        """
        left = max(0.05, deadline - time.monotonic())
        near = (
            self._share and self._options.tls is None and self._streams in (1, "auto")
        )
        self._looked = time.monotonic()
        dialled: Future[Wire] = Future()
        self._dial_under_way = dialled

        def dial() -> None:
            try:
                at = self._members[peer]
                key, tls = self._options.secret, self._options.tls
                dialled.set_result(authentication.dial(at, left, key, tls, near))
            except BaseException as error:
                dialled.set_exception(error)

        threading.Thread(target=dial, name="pcp-dial", daemon=True).start()
        either: list[Future[Any]] = [dialled, self._done]
        wait(either, return_when=FIRST_COMPLETED)
        if not dialled.done():
            dialled.add_done_callback(_hang_up)
            self._done.result()
        try:
            return dialled.result()
        except PeerLost as error:
            raise PeerLost(f"rank {peer} is lost: {error}", peer=peer) from error

    def _greet_as(self, peer: int, stream: int, sock: Wire) -> None:
        address = self._members[peer]
        hello = {
            "purpose": "group",
            "epoch": self.epoch,
            "rank": self.group.rank,
            "members": self._digest,
            "streams": self._counts[peer],
            "used": self._used.get(peer, 0),
            "lane": stream,
            "checksum": self._options.link_checksum,
        }
        if self.scope:  # greetings without one are those of older versions
            hello["scope"] = self.scope

        def greet() -> None:
            link = TcpLink(self.group.loop, sock, self, address)
            self._dialled[link] = peer
            self._links.setdefault(peer, {})[stream] = link
            link.send(Frame(Kind.HELLO, payload=json_payload(hello)))

        self.group.loop.ask(greet)

    def _settled(self, seconds: float) -> bool:
        try:
            self._done.exception(seconds)
        except TimeoutError:
            return False
        return True

    @property
    def missing(self) -> list[int]:
        """The ranks that are not connected."""
        links, here = self.group.links, self.group.rank
        world = range(self.group.world_size)
        return [rank for rank in world if rank != here and rank not in links]

    @property
    def awaited(self) -> AwaitedRanks | None:
        """The ranks that it waits for; None when it is over, or its thread hangs.

        The thread looks around again and again, or waits for an answer to a dial.
        """
        now, dial = time.monotonic(), self._dial_under_way
        dialling = dial is not None and not dial.done()
        if self._done.done() or (not dialling and now - self._looked > _LATE_SECONDS):
            return None
        return AwaitedRanks(tuple(self.missing), now - self._began)

    def _look_around(self, deadline: float) -> None:
        """Probe the missing members; Timeout after the deadline, with their ranks."""
        if self.group.fault is not None:
            raise self.group.fault
        missing, self._looked = self.missing, time.monotonic()
        if time.monotonic() > deadline:
            raise Timeout(
                f"epoch {self.epoch} was not formed in time: rank "
                f"{', '.join(map(str, missing))} did not connect",
                peers=missing,
            )
        for rank in missing:
            if rank > self.group.rank:
                self._probe(rank)

    def _probe(self, rank: int) -> None:
        try:
            dial(self._members[rank], _PROBE_SECONDS).close()
        except Timeout:
            pass  # slow is not dead: the deadline decides
        except PeerLost as error:
            raise PeerLost(f"rank {rank} is lost: {error}", peer=rank) from error


def members_digest(members: Sequence[str]) -> str:
    """A digest of the member list in order, which all members compare."""
    return hashlib.blake2b("\n".join(members).encode(), digest_size=16).hexdigest()


def _hang_up(dialled: "Future[Wire]") -> None:
    """Close a connection that came after its formation ended."""
    if dialled.exception() is None:
        dialled.result().close()
