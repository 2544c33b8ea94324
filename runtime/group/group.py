"""The members of one epoch and the operations among them.

A group routes frames to operations, notices dead peers (a closed connection,
silence) and tells the other members, so that all know of a loss at once.
A group that lost a member, or was aborted, is finished: the next group has a
higher epoch.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from pcp.errors import (
    CollectiveAborted,
    PcpError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
)
from pcp.runtime.collectives.agreement import many
from pcp.runtime.collectives.descriptor import LIMITS
from pcp.runtime.collectives.metrics import Metric, Telemetry
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.segments.compiled_moves import CompiledLoop, lendable
from pcp.runtime.group.failure_detector import FailureDetector, HeartbeatOptions
from pcp.runtime.group.operation_table import OperationTable
from pcp.runtime.group.outcomes import CALLED_BYTES, Key, called_by
from pcp.runtime.group.peer_health import Health, group_metrics
from pcp.runtime.group.unexpected_frames import AHEAD_BYTES, charge
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.frame import (
    MAX_TEXT,
    Frame,
    Header,
    Kind,
    text,
    text_payload,
)
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.shared_memory import SharedLink
from pcp.runtime.transport.tcp import TcpLink

_NEAR_PAYLOAD = 1 << 20
"""The most bytes of a payload of a sum, whose result goes on after its checksum."""
_LIMITS = LIMITS | {Kind.REFUSE: MAX_TEXT, Kind.BYE: CALLED_BYTES}
_PROCESSORS = os.cpu_count() or 1


class Group:
    """One member's view of a group. All methods but `submit` run in the loop."""

    def __init__(
        self,
        loop: Loop,
        rank: int,
        world_size: int,
        epoch: int,
        heartbeat: HeartbeatOptions | None = None,
        faults: FaultPlan | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.loop = loop
        self.rank = rank
        self.world_size = world_size
        self.epoch = epoch
        self.links: dict[int, Link] = {}
        self.fault: RuntimeFault | None = None
        """The fault that finished the group; None while it works."""
        self.health = Health()
        self.heard = False
        """Whether the caller knows of the fault, by a future or by `fault`."""
        self.telemetry = telemetry or Telemetry()
        self.telemetry.sources.append(self._metrics)
        heartbeat = heartbeat or HeartbeatOptions()
        self._failure_detector = FailureDetector(self, heartbeat)
        self.farewell = heartbeat.silence
        """How long a peer may take to answer this member's BYE, in seconds."""
        self._faults = faults
        self._ranks: dict[Link, int] = {}
        self._table = OperationTable(self)
        self._ahead: Counter[int] = Counter()
        """Bytes that each peer may keep as unexpected frames, by `charge`."""
        self._left: set[int] = set()
        self._on_one_machine = False
        """Whether all members are on this machine, with a processor for each."""
        self._closed = False
        self._compiled: CompiledLoop | None = None
        self._closing: list[Link] = []
        self.arbiter: Callable[[Key], None] | None = None
        """The arbiter of operations in doubt after the loss of a peer, or None."""
        self.at_close: list[Callable[[], None]] = []
        """Functions that the group calls when it closes."""

    @property
    def lingering(self) -> bool:
        """Whether BYE frames are still on their way."""
        return any(link.alive for link in self._closing)

    @property
    def all_links(self) -> list[Link]:
        """Every link this group ever had, for the counters."""
        return list(self._ranks)

    # Forming.

    def admit(self, rank: int, link: Link) -> None:
        """Take over the link to a member."""
        self.links[rank] = link
        self._ranks[link] = rank
        link.last_heard = time.monotonic()
        link.epoch = self.epoch
        link.sink = self
        if isinstance(link, TcpLink):
            link.flow = partial(self._table.flow, rank)
        self._on_one_machine = self.world_size <= _PROCESSORS and all(
            isinstance(link, SharedLink) for link in self.links.values()
        )
        self.health.admit(rank, link.round_trip)
        self._failure_detector.start()

    # Starting operations.

    def submit(
        self, operation: Operation, tag: str, turn: int | None = None
    ) -> Pending:
        """Number an operation, `turn` of its tag or the next one, and post it.

        From any thread, one call at a time: the order of the calls numbers them.
        """
        operation.pending.by, operation.pending.of = self.loop, self
        self._table.number(operation, tag, turn)
        self.loop.call(self.post, operation)
        return operation.pending

    # For operations (`operation.Members`).

    def send(self, peer: int, frame: Frame) -> None:
        """Queue a frame to a member; a frame to a lost member is dropped."""
        link = self.links.get(peer)
        if link is None:
            return
        if self._faults is not None:
            self._faults.send(self, peer, link, frame)
        else:
            link.send(frame)

    def recall(self, peer: int, tag: int, seq: int) -> None:
        """Drop an operation's queued data."""
        link = self.links.get(peer)
        if link is not None:
            link.recall(tag, seq)

    def suits(self, peer: int) -> int:
        """The bytes of the largest payload that suits the link to a member.

        A connection is the operation's for that long, and a far one takes its time.
        """
        plain = isinstance(self.links.get(peer), TcpLink)
        return _NEAR_PAYLOAD if plain and peer not in self.health.far else 0

    def compiled_loop(self, peers: Iterable[int]) -> CompiledLoop | None:
        """The compiled loop over the links to these members; None if there is none.

        It would bypass a fault plan; and far peers get data before they open.
        """
        kept = self._compiled
        if kept is not None and kept.running:
            return kept if kept.takes(peers) else None
        if self._faults is not None or self.loop.driver is not None:
            return None
        near = {peer: self.links.get(peer) for peer in {*peers} - self.health.far}
        found = lendable(near) if len(near) == len({*peers}) else None
        if found is not None and (kept is None or kept.links != found):
            kept = self._compiled = CompiledLoop(self.loop, found)
        return None if found is None else kept

    def run_ahead(self, peer: int, nbytes: int) -> int:
        """Reserve room for data at a peer before it opens: the cost, 0 to wait.

        The OPEN frame of a peer takes half a round trip: sending ahead pays where that
        takes longer than the copy that the peer may have to make.
        """
        cost = charge(nbytes)
        if peer not in self.health.far or self._ahead[peer] + cost > AHEAD_BYTES:
            return 0
        self._ahead[peer] += cost
        return cost

    def caught_up(self, peer: int, cost: int) -> None:
        """Return room of this cost: the peer opened, or has to drop the data."""
        self._ahead[peer] -= cost

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        """Run something later in the loop's thread."""
        return self.loop.later(delay, what)

    def retire(self, operation: Operation) -> None:
        """Forget an operation that is over."""
        if self._table.remove(operation):
            self.loop.expecting -= self._on_one_machine
        self.health.waited(operation.timing)
        self.telemetry.ended(operation, self.rank, self.epoch, self.links)

    def arbitrate(self, operation: Operation) -> bool:
        """Ask the arbiter, if there is one; `decided` brings the answer."""
        if self.arbiter is None or self._closed:
            return False
        self.arbiter(self._table.doubt(operation))
        return True

    @property
    def shaped(self) -> bool:
        """Whether a fault plan slows a link: shared memory would bypass it."""
        return self._faults is not None and bool(self._faults.shapes)

    # For an arbiter (`membership`).

    @property
    def idle(self) -> bool:
        """Whether no operation is under way."""
        return not self._table.operations

    @property
    def under_way(self) -> list[Operation]:
        """The operations that were posted and are not over, in that order."""
        return list(self._table.operations.values())

    @property
    def in_flight(self) -> int:
        """How many operations are under way."""
        return len(self._table.operations)

    @property
    def failures(self) -> Iterable[tuple[str, PcpError]]:
        """The last failed operations, for `Leaving.check`."""
        return self._table.failures

    @property
    def doubtful(self) -> list[Key]:
        """The operations that wait for a decision."""
        return list(self._table.doubtful)

    def concede(self, key: Key) -> bool:
        """Whether this member voted for an operation; if not, it never will."""
        return self._table.concede(key)

    def decided(self, key: Key, commit: bool) -> None:
        """Carry out the arbiter's decision about an operation."""
        operation = self._table.doubtful.pop(key, None)
        if operation is not None:
            operation.decided(commit)

    def peer_died(self, rank: int, reason: str) -> None:
        """Note a member's death that the coordinator reports."""
        self._lose(rank, reason)

    def silent(self, rank: int, seconds: float) -> None:
        """Declare a member lost that was silent for too long."""
        self._lose(rank, f"rank {rank} is lost: silent for {seconds:g} s")

    def post(self, operation: Operation) -> None:
        """Start an operation whose tag and seq are set."""
        gone = self._left.intersection(operation.peers)
        unexpected = self._table.add(operation)
        if unexpected is None:
            return
        self.loop.expecting += self._on_one_machine
        try:
            if self._compiled is not None:
                self._compiled.spare(operation.given)
            operation.start(self)
        except Exception as error:  # no memory, most likely
            operation.give_up(RuntimeFault(f"{operation.name} did not start: {error}"))
        # A member that left may have sent data for this operation before.
        for peer, header, payload in unexpected:
            self._guarded(peer, self._table.dispatch, peer, header, payload, early=True)
        for peer in gone:
            operation.on_lost(peer, self._left_error(peer), left=True)

    # Ending.

    def abort(self, error: RuntimeFault) -> None:
        """Finish the group: give up every operation, here and on all members."""
        for peer in list(self.links):
            self.send(peer, Frame(Kind.BREAK, payload=text_payload(str(error))))
        self._break(error)

    def close(self, *, crash: bool = False) -> None:
        """Leave, and give up operations under way. Peers get a BYE, unless in a crash.

        The links close when the peers have read all frames (`lingering`).
        """
        if self._closed:
            return
        self._closed = True
        self._failure_detector.stop()
        error = CollectiveAborted("this member closed its communicator")
        for operation in () if crash else self.under_way:
            operation.left(error)
        self._break(error)
        self.telemetry.sources.remove(self._metrics)
        self.telemetry.keep(self._ranks)
        for what in self.at_close:
            what()
        among_many = many(range(self.world_size - 1))
        called = self._table.outcomes.called() if among_many else b""
        links, self.links = self.links, {}
        self._closing += links.values()
        for link in links.values():
            if crash:
                link.sever()
            else:
                link.send(Frame(Kind.BYE, payload=called))
                link.close(flush=self.farewell)

    # For links (`link.Sink`).

    def place(self, link: Link, header: Header) -> memoryview:
        """Memory for a payload: an operation's own memory for bulk data."""
        rank = self._ranks[link]
        if header.kind is Kind.DATA:
            return self._table.room(rank, header)
        if header.length > _LIMITS.get(header.kind, 0):
            raise ProtocolError(
                f"rank {rank} sent {header.length} bytes of {header.kind.name}"
            )
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Handle a frame from a member."""
        rank = self._ranks[link]
        match header.kind:
            case Kind.OPEN | Kind.DONE:
                self._table.dispatch(rank, header, payload)
            case Kind.DATA if not header.length:
                raise ProtocolError(f"rank {rank} sent data without data")
            case Kind.DATA:
                self._table.data(rank, header, payload)
            case Kind.ABORT if max(header.step - 1, header.offset) >= self.world_size:
                raise ProtocolError(f"rank {rank} speaks of ranks that are not there")
            case Kind.ABORT:
                self._table.dispatch(rank, header, payload)
            case Kind.LOST if rank not in self._left:
                self._lose(header.step, text(payload))
            case Kind.LOST:
                pass  # a lost member's frames about others do not count
            case Kind.BREAK:
                self._break(CollectiveAborted(f"rank {rank}: {text(payload)}"))
            case Kind.BYE:
                self._leave(rank, called_by(payload))
            case Kind.PING:
                self.health.heard(rank, link, header)
            case Kind.REFUSE:  # the peer takes no more frames of this link
                raise ProtocolError(f"rank {rank} refuses this link: {text(payload)}")
            case _:
                raise ProtocolError(f"rank {rank} sent {header.kind.name} in a group")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Declare the member of a broken link lost."""
        rank = self._ranks[link]
        self.links.pop(rank, None)
        if not self._closed:
            self._lose(rank, f"rank {rank} is lost: {error}")

    # Inside.

    def _guarded(
        self, peer: int, what: Callable[..., None], *args: object, **more: object
    ) -> None:
        try:
            what(*args, **more)
        except RuntimeFault as fault:
            link = self.links.pop(peer, None)
            if link is not None:
                link.sever()
            self._lose(peer, f"rank {peer} is lost: {fault}")

    def _left_error(self, rank: int) -> PeerLost:
        return PeerLost(f"rank {rank} left the group", peer=rank)

    def _leave(self, rank: int, called: dict[int, int]) -> None:
        """Handle a BYE: only operations that need the member are affected."""
        self._left.add(rank)
        self._table.unexpected.left(rank)
        link = self.links.pop(rank, None)
        for operation in list(self._table.operations.values()):
            known = operation.seq < called.get(operation.tag, 0)
            error = self._left_error(rank)
            known = known or not many(operation.peers)  # or it could not have voted
            operation.on_lost(rank, error, left=True, called=known)
        if link is not None:
            self._closing.append(link)
            link.close(flush=self.farewell)

    def _lose(self, rank: int, reason: str) -> None:
        """Tell all members of a death, and finish the group."""
        if rank >= self.world_size:
            raise ProtocolError(f"there is no rank {rank} to lose")
        if rank in self._left or rank == self.rank:
            return
        self._left.add(rank)
        if self._said_goodbye(rank):
            return
        self.telemetry.count("peer lost")
        error = PeerLost(reason, peer=rank)
        if self.fault is None:
            self.fault = error
            self._table.unexpected.clear()
            news = Frame(Kind.LOST, step=rank, payload=text_payload(reason))
            for peer in list(self.links):
                self.send(peer, replace(news))
        link = self.links.pop(rank, None)
        if link is not None:
            link.sever()
        for operation in list(self._table.operations.values()):
            operation.on_lost(rank, error)

    def _said_goodbye(self, rank: int) -> bool:
        """Deliver the unread frames of a lost member; whether a BYE was among them.

        Its votes may be here, unread, when another link reports its death.
        """
        link = self.links.get(rank)
        if link is not None:
            link.exhaust()
        return link in self._closing

    def _break(self, error: RuntimeFault) -> None:
        if self.fault is None:
            self.fault = error
        for operation in list(self._table.operations.values()):
            operation.broken(error)
        self._table.unexpected.clear()

    def _metrics(self) -> list[Metric]:
        facts = {
            "epoch": self.epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "operations_in_flight": self.in_flight,
        }
        return list(group_metrics(self.health, self.links, facts))
