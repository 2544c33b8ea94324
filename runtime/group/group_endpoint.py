"""The endpoint of a process: its listener, on which groups are formed.

A worker's endpoint lives as long as the worker. Groups come and go on it, one epoch
after another, always as a full mesh: the member with the higher rank dials. An epoch
only replaces older epochs of its own scope. A peer may dial before this member knows of
the epoch; its connection waits until `form` is called for that epoch, for at most
`AHEAD_SECONDS`. A peer of another protocol, version or epoch is refused with a reason,
and the endpoint lives on.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import WeakKeyDictionary

import numpy as np

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    ProtocolError,
    RuntimeFault,
)
from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.metrics import Telemetry
from pcp.runtime.group.connection_options import (
    ConnectionKeywords,
    ConnectionOptions,
    expanded,
)
from pcp.runtime.group.group import Group
from pcp.runtime.group.mesh_formation import EPOCH_OVER, MeshFormation
from pcp.runtime.group.operation_table import AwaitedRanks
from pcp.runtime.group.state_transfer import Snapshot, serve
from pcp.runtime.transport import authentication
from pcp.runtime.transport.address import WILDCARDS, parse_address
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import MAX_TEXT, Header, Kind, parse_json
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.listener import Listener
from pcp.runtime.transport.tcp import TcpLink

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

HANDSHAKE_SECONDS = 5.0
AHEAD_SECONDS = 60.0
_MAX_WAITING = 256
Greeter = Callable[[TcpLink, dict[str, Any]], None]


class GroupEndpoint:
    """A process's address in the mesh; `endpoint.Endpoint` is the class for users."""

    def __init__(
        self,
        address: str,
        advertise: str | None,
        options: ConnectionOptions,
        purposes: Sequence[str] = (),
    ) -> None:
        if options.tls is not None:
            options.tls.check()
        self.options = options
        self._listener = Listener(
            address, near=options.shared_memory and options.tls is None
        )
        self.listening = self._listener.address
        """The address `host:port` of the listener."""
        self.address = advertise or self.listening
        """The address by which peers reach this endpoint."""
        self.loop = Loop(f"pcp-{self._listener.port}")
        self.telemetry = Telemetry()
        self.faults = options.faults
        self._greeters: dict[str, Greeter] = dict.fromkeys(
            purposes, self._wait_for_greeter
        )
        self._greeters["group"] = self._greet_member
        self._early: list[tuple[TcpLink, dict[str, Any]]] = []
        self._waiting: dict[TcpLink, float] = {}
        self._gates: WeakKeyDictionary[Link, authentication.Gate] = WeakKeyDictionary()
        self._ahead: list[tuple[TcpLink, dict[str, Any]]] = []
        self._formations: dict[tuple[str, int], MeshFormation] = {}
        self._newest: dict[str, int] = {}
        """The newest epoch of each scope."""
        self._floor: dict[str, int] = {}
        self._groups: list[tuple[str, Group]] = []
        """The groups, each with its scope."""
        self._closed = False
        self._lock = threading.Lock()
        self.loop.call(self._listener.attend, self.loop, self._arrived)
        self.loop.call(self._sweep)

    @classmethod
    @expanded(ConnectionOptions())
    def listen(
        cls,
        address: str = "127.0.0.1:0",
        *,
        advertise: str | None = None,
        purposes: Sequence[str] = (),
        **options: Unpack[ConnectionKeywords],
    ) -> Self:
        """Listen on `address` (port 0: any free one).

        `advertise` is the address for peers where it differs from the listening one
        (all interfaces, a NAT). A peer silent for `silence` seconds is lost; a link
        that sent no frame for `heartbeat` seconds sends a PING. Between members on one
        machine large payloads go through `shared_memory`, and where no other address
        is advertised all other frames go through sockets of this machine
        (`unix_socket`). With a `key` every peer must have the same
        (`authentication`). Large payloads to a peer share `streams` connections and
        then do without the memory (`striped`): one if it is near, otherwise more the
        farther it is. With `tls` all connections are encrypted, and every peer needs a
        certificate of its authority (`tls`). A connection for one of `purposes` waits
        until `greet` sets its greeter; for any other purpose without a greeter it is
        refused.
        """
        chosen = ConnectionOptions().changed(options)
        host, _ = parse_address(address)
        if advertise is None and host in WILDCARDS:
            raise ConfigError(
                f"listening on {address} needs advertise='host:port': peers cannot "
                f"reach a wildcard address"
            )
        if advertise is not None:
            parse_address(advertise)
        return cls(address, advertise, chosen, purposes)

    @property
    def key(self) -> authentication.Key:
        """The key that every peer must have; None without one."""
        return self.options.secret

    @property
    def tls(self) -> "Tls | None":
        """The encryption of all connections; None without."""
        return self.options.tls

    def form_group(
        self,
        epoch: int,
        members: Sequence[str],
        rank: int,
        timeout: float = 30.0,
        scope: str = "",
    ) -> Group:
        """The group of `members` (addresses in rank order) for an epoch.

        Blocks until all members have formed it. Groups of older epochs of the scope
        are closed, and the formation of an older one under way is abandoned. Raises
        PeerLost when a member cannot be reached, Timeout naming the missing ranks
        after `timeout` seconds, ProtocolError when a member refuses.
        """
        deadline = time.monotonic() + timeout
        formation = self._formation(epoch, members, rank, scope)
        group = formation.group
        peers = [peer for peer in range(group.world_size) if peer != rank]
        try:
            self.loop.ask(lambda: self._begin(formation))
            formation.wait(deadline)
            all_here = Barrier(peers, max(0.05, deadline - time.monotonic()))
            group.submit(all_here, "").result()
        except BaseException:
            if not self.loop.closed:
                self.loop.ask(group.close)
            raise
        finally:
            self.loop.call(self._formed, formation)
        return group

    def serve_snapshot(
        self, provider: Callable[[], tuple[int, dict[str, np.ndarray]]]
    ) -> None:
        """Serve `provider()`'s (revision, arrays) to every `fetch_snapshot`.

        The provider runs in a thread of its own for each request and must
        return arrays that do not change while they are sent.
        """
        snapshot = Snapshot(provider)

        def greet(link: TcpLink, hello: dict[str, Any]) -> None:
            serve(link.detach(), snapshot, hello)

        self.greet("snapshot", greet)

    def greet(self, purpose: str, greeter: Greeter) -> None:
        """Let `greeter(link, hello)` answer connections made for `purpose`."""

        def serve() -> None:
            self._greeters[purpose] = greeter
            early, self._early = self._early, []
            for link, hello in early:
                self._greeters[str(hello["purpose"])](link, hello)

        self.loop.ask(serve)

    def cancel(self, reason: str, *, below: int | None = None, scope: str = "") -> None:
        """Abandon every `form` under way in a scope; it raises CollectiveAborted.

        With `below`, only those of earlier epochs, and also those still to come.
        """
        if below is not None:
            self._floor[scope] = max(self._floor.get(scope, -1), below)
        self.loop.call(self._cancel, CollectiveAborted(reason), scope, below)

    def awaited(self, timeout: float = 1.0) -> dict[str, AwaitedRanks] | None:
        """The ranks that this member waits for, by scope, where a call waits.

        In the newest group of a scope, or until it is formed; from any thread. None if
        the endpoint is closed, or so busy that it does not answer within `timeout`
        seconds.
        """
        try:
            return self.loop.ask(self._awaited, timeout)
        except RuntimeFault:
            return None

    def close(self) -> None:
        """Close all groups, the listener and the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.loop.ask(self._shut)
            self._linger(self.options.silence)
        finally:  # also where the loop is too busy to answer
            self._listener.close(self.loop)
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Forming groups.

    def _formation(
        self, epoch: int, members: Sequence[str], rank: int, scope: str
    ) -> MeshFormation:
        members = list(members)
        if not 0 <= rank < len(members):
            raise ConfigError(f"rank {rank} of {len(members)} members does not exist")
        if not 0 <= epoch < 1 << 64:
            raise ConfigError(f"epoch {epoch}: epochs are numbers of 64 bits, from 0")
        group = Group(
            self.loop,
            rank,
            len(members),
            epoch,
            self.options.heartbeat_options,
            self.faults,
            self.telemetry,
        )
        return MeshFormation(group, members, self.options, scope)

    def _begin(self, formation: MeshFormation) -> None:
        if self._closed:
            raise CollectiveAborted("the endpoint is closed")
        scope, epoch = formation.scope, formation.epoch
        if epoch < (floor := self._floor.get(scope, -1)):
            raise CollectiveAborted(f"epoch {floor} replaces {epoch}")
        if epoch <= (newest := self._newest.get(scope, -1)):
            raise ConfigError(
                f"epoch {epoch} is not newer than {newest}; every new group takes a "
                "higher epoch"
            )
        self._newest[scope] = epoch
        newer = f"epoch {epoch} replaces it"
        self._cancel(CollectiveAborted(newer), scope, epoch)
        for of, group in self._groups:
            if of == scope:
                group.abort(CollectiveAborted(f"epoch {group.epoch} is over: {newer}"))
                group.close()
        self._groups = [
            (of, group) for of, group in self._groups if of != scope or group.lingering
        ]
        self._groups.append((scope, formation.group))
        self._formations[scope, epoch] = formation
        ahead, self._ahead = self._ahead, []
        for link, hello in ahead:
            self._greet_member(link, hello)

    def _cancel(
        self, error: RuntimeFault, scope: str | None, below: int | None = None
    ) -> None:
        for (of, epoch), formation in list(self._formations.items()):
            if scope in (None, of) and (below is None or epoch < below):
                formation.cancel(error)

    def _awaited(self) -> dict[str, AwaitedRanks]:
        newest = dict(self._groups)
        found = {of: AwaitedRanks.by(group.under_way) for of, group in newest.items()}
        for (scope, epoch), formation in self._formations.items():
            if epoch == newest[scope].epoch:
                found[scope] = found[scope] or formation.awaited
        return {scope: said for scope, said in found.items() if said is not None}

    def _formed(self, formation: MeshFormation) -> None:
        self._formations.pop((formation.scope, formation.epoch), None)

    # Greetings of new connections. All of it in the loop's thread.

    def _arrived(self, sock: socket.socket, peer: str) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            # A peer greets at once: silent connections keep no peer out.
            silent = next(iter(self._waiting))
            del self._waiting[silent]
            silent.close()
        wire = sock if self.tls is None else self.tls.serve(sock)
        link = TcpLink(self.loop, wire, self, peer)
        self._waiting[link] = time.monotonic() + HANDSHAKE_SECONDS
        self._gates[link] = authentication.Gate(self.key, wire)

    def place(self, link: Link, header: Header) -> memoryview:
        """Memory for a greeting, and the proof of a key before it."""
        if self._gates[link].room(header.kind, header.length):
            return memoryview(bytearray(header.length))
        if header.kind is not Kind.HELLO or header.length > MAX_TEXT:
            raise ProtocolError(f"{header.kind.name} instead of a greeting")
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Handle a greeting, or the proof of a key before it."""
        gate = self._gates[link]
        if header.kind in (Kind.AUTH, Kind.PROOF) or not gate.open:
            answer = gate.hear(header.kind, bytes(payload))
            if answer is not None:
                link.send(answer)
            return
        if link not in self._waiting or header.kind is not Kind.HELLO:
            raise ProtocolError(f"{header.kind.name} instead of a greeting")
        assert isinstance(link, TcpLink), "only sockets greet an endpoint"
        hello = parse_json(payload)
        del self._waiting[link]
        greeter = self._greeters.get(str(hello.get("purpose")))
        if greeter is None:
            link.refuse(f"nothing here serves {hello.get('purpose')!r}")
            return
        greeter(link, hello)

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Forget a connection that ended before it was a member's."""
        assert isinstance(link, TcpLink), "only sockets greet an endpoint"
        self._waiting.pop(link, None)
        self._ahead = [entry for entry in self._ahead if entry[0] is not link]
        self._early = [entry for entry in self._early if entry[0] is not link]

    def _wait_for_greeter(self, link: TcpLink, hello: dict[str, Any]) -> None:
        """Keep a connection until `greet` sets the greeter of its purpose."""
        if len(self._early) >= _MAX_WAITING:
            link.refuse("too many connections came early")
        else:
            self._early.append((link, hello))

    def _greet_member(self, link: TcpLink, hello: dict[str, Any]) -> None:
        epoch, scope = hello.get("epoch"), hello.get("scope", "")
        if not isinstance(epoch, int) or isinstance(epoch, bool):
            link.refuse("a greeting without an epoch")
        elif not isinstance(scope, str):
            link.refuse("a greeting whose scope is no text")
        elif (scope, epoch) in self._formations:
            self._formations[scope, epoch].greet(link, hello)
        elif epoch <= (newest := self._newest.get(scope, -1)):
            link.refuse(
                f"epoch {epoch} is over; this member is at {newest}", EPOCH_OVER
            )
        elif len(self._ahead) >= _MAX_WAITING:
            link.refuse("too many connections wait for a later epoch")
        else:
            link.last_heard = time.monotonic()
            self._ahead.append((link, hello))

    def _sweep(self) -> None:
        """Close connections without a greeting, or that wait for an epoch too long."""
        now = time.monotonic()
        for link, until in list(self._waiting.items()):
            if now > until:
                del self._waiting[link]
                link.refuse(f"no greeting within {HANDSHAKE_SECONDS:g} s")
        for link, hello in list(self._ahead):
            if now > link.last_heard + AHEAD_SECONDS:
                self._ahead.remove((link, hello))
                link.refuse(f"epoch {hello['epoch']} was not formed here in time")
        self.loop.later(0.5, self._sweep)

    def _shut(self) -> None:
        self._cancel(CollectiveAborted("the endpoint was closed"), None)
        for _, group in self._groups:
            group.close()
        held = [link for link, _ in [*self._ahead, *self._early]]
        for link in [*self._waiting, *held]:
            link.close()
        self._waiting.clear()
        self._ahead.clear()

    def _linger(self, seconds: float) -> None:
        """Wait for the acknowledgements of BYE frames.

        A connection that is closed before the peer has read all frames may be reset,
        and unread frames are then lost. A live peer answers in a moment.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.loop.ask(
            lambda: any(group.lingering for _, group in self._groups)
        ):
            time.sleep(0.002)
