"""Frames that nobody should send: recorded conversations, mutated and made up.

A `Script` is what an honest member really sent during one operation. Replayed
up to a random place, with frames changed or put in between, it reaches every
state a connection can be in.
"""

import json
import logging
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pcp.errors import RuntimeFault
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.group import Group, HeartbeatOptions
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.frame import Frame, Kind, pack_header
from pcp.runtime.transport.shared_memory import SharedLink
from pcp.runtime.transport.striped import StripedLink
from pcp.runtime.transport.tcp import TcpLink

EPOCH = 3
EDGES = (0, 1, 2, 3, 255, 4096, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
WIDE_EDGES = (*EDGES, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
NONSENSE = (
    b"",
    b"{",
    b"[" * 4000,
    b'{"a":' * 700,
    b'{"epoch":' + b"9" * 5000 + b"}",
    b'{"purpose":"\\ud800","kind":"\\udfff"}',
    b'{"purpose":["group"],"epoch":true,"rank":true}',
    b'{"purpose":"group","epoch":1e400,"rank":NaN,"members":{}}',
    b'{"purpose":"group","epoch":-1,"rank":-1,"members":null}',
    b'{"pid":1,"fd":0,"nonce":"00"}',
    b'{"pid":-1,"fd":99999999999999999999,"nonce":7}',
    b'{"what":"vote"}',
    b"null",
    b"\xff" * 20_000,
)
OPERATIONS: dict[str, Callable[[Communicator], Any]] = {
    "barrier": lambda c: c.barrier_async(timeout=30),
    "small sum": lambda c: c.all_reduce_async(np.ones(40), timeout=30),
    "ring": lambda c: c.all_reduce_async(np.ones(40_000, np.float32), timeout=30),
    "int8": lambda c: c.all_reduce_async(
        np.ones(9000, np.float32), compression="int8", timeout=30
    ),
    "scatter": lambda c: c.reduce_scatter_async(np.ones((40, 500)), timeout=30),
    "gather": lambda c: c.all_gather_async(np.ones((9, 1000)), timeout=30),
    "broadcast": lambda c: c.broadcast_async(np.ones(20_000), 1, timeout=30),
    "transpose": lambda c: c.all_to_all_async(np.ones((2, 6000)), timeout=30),
    "permute": lambda c: c.permute_async(np.ones(6000), [(0, 1), (1, 0)], timeout=30),
    "receive": lambda c: (
        c.send_async(np.ones(9000), 0, timeout=30)
        if c.rank
        else c.recv_async(np.zeros(9000), 1, timeout=30)
    ),
}


class Recorder(FaultPlan):
    """A plan in which nothing goes wrong, but everything is written down."""

    def __init__(self) -> None:
        super().__init__([])
        self.frames: list[Frame] = []

    def send(self, group: Any, peer: int, link: Any, frame: Frame) -> None:
        """Keep a copy, and send."""
        copy = replace(frame, payload=bytes(frame.payload), on_sent=None)
        self.frames.append(copy)
        link.send(frame)


class Liar(FaultPlan):
    """What a member sends is now and then something else."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        super().__init__([])
        self._rng, self._rate = rng, rate
        self.lies = 0

    def send(self, group: Any, peer: int, link: Any, frame: Frame) -> None:
        """Send the frame, a mutated one instead of it, or one before it."""
        if self._rng.random() < self._rate:
            self.lies += 1
            link.send(mutated(self._rng, replace(frame, on_sent=None)))
            if self._rng.random() < 0.5:
                if frame.on_sent is not None:
                    group.loop.call(frame.on_sent)
                return
        link.send(frame)


def scripts() -> dict[str, list[Frame]]:
    """What rank 1 says to rank 0 in each operation."""
    said = {}
    for name, start in OPERATIONS.items():
        recorder = Recorder()
        members = Communicator.in_process(2, faults={1: recorder})
        try:
            for pending in [start(c) for c in members]:
                pending.result(30)
        finally:
            for member in members:
                member.close()
        said[name] = recorder.frames
    return said


def anything(rng: random.Random) -> Frame:
    """A frame of any kind with any numbers."""
    size = rng.choice((0, 0, 1, 8, 16, 52, 300, 5000))
    payload = rng.choice((rng.randbytes(size), rng.choice(NONSENSE), b""))
    return Frame(
        rng.choice(list(Kind)),
        rng.choice(WIDE_EDGES),
        rng.choice(EDGES),
        rng.choice(EDGES),
        rng.choice(WIDE_EDGES),
        payload,
    )


def mutated(rng: random.Random, frame: Frame) -> Frame:
    """The frame with one thing or several changed."""
    frame = replace(frame, payload=bytes(frame.payload))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _MUTATIONS[rng.randrange(len(_MUTATIONS))](rng, frame)
    return frame


def _field(name: str, edges: Sequence[int]) -> Callable[[random.Random, Frame], None]:
    limit = edges[-1]

    def change(rng: random.Random, frame: Frame) -> None:
        near = getattr(frame, name) + rng.choice((-1, 1))
        setattr(frame, name, rng.choice((min(limit, max(0, near)), rng.choice(edges))))

    return change


def _kind(rng: random.Random, frame: Frame) -> None:
    frame.kind = rng.choice(list(Kind))


def _cut(rng: random.Random, frame: Frame) -> None:
    frame.payload = frame.payload[: rng.randrange(len(frame.payload) + 1)]


def _grow(rng: random.Random, frame: Frame) -> None:
    frame.payload = bytes(frame.payload) + rng.randbytes(rng.choice((1, 7, 900)))


def _flip(rng: random.Random, frame: Frame) -> None:
    if frame.payload:
        changed = bytearray(frame.payload)
        changed[rng.randrange(min(200, len(changed)))] ^= 1 << rng.randrange(8)
        frame.payload = bytes(changed)


def _empty(rng: random.Random, frame: Frame) -> None:
    frame.payload = b""


def _replace(rng: random.Random, frame: Frame) -> None:
    frame.payload = rng.choice(NONSENSE)


def _descriptor(rng: random.Random, frame: Frame) -> None:
    """An OPEN frame whose descriptor fits in it and is nonsense."""
    nonsense = rng.choice(NONSENSE)[:4096]
    frame.kind = Kind.OPEN
    frame.payload = len(nonsense).to_bytes(4, "big") + nonsense


def _greeting(rng: random.Random, frame: Frame) -> None:
    """A JSON object with one value of another type."""
    try:
        values = json.loads(bytes(frame.payload))
    except (ValueError, RecursionError):
        return
    if not isinstance(values, dict) or not values:
        return
    key = rng.choice(list(values))
    odd = (None, True, -1, 1 << 70, 1.5, "\ud800", "group", [], {}, [[1]], "x" * 900)
    inner = values if not isinstance(values[key], dict) else values[key] or values
    key = rng.choice(list(inner)) if inner is not values else key
    if rng.random() < 0.3:
        del inner[key]
    else:
        inner[key] = rng.choice(odd)
    frame.payload = json.dumps(values).encode()


def _damaged(rng: random.Random, frame: Frame) -> None:
    frame.checksum = rng.randrange(1 << 32)


_MUTATIONS = (
    _field("tag", WIDE_EDGES),
    _field("seq", EDGES),
    _field("step", EDGES),
    _field("offset", WIDE_EDGES),
    _kind,
    _cut,
    _grow,
    _flip,
    _empty,
    _replace,
    _descriptor,
    _greeting,
    _greeting,
    _damaged,
)


def wire(rng: random.Random, frame: Frame, epoch: int) -> bytes:
    """The frame's bytes; sometimes of another epoch, damaged, cut, or no frame."""
    if rng.random() < 0.02:
        epoch = rng.choice(WIDE_EDGES)
    raw = bytearray(pack_header(frame, epoch) + bytes(frame.payload))
    luck = rng.random()
    if luck < 0.02:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif luck < 0.04:
        del raw[rng.randrange(len(raw)) :]
    elif luck < 0.05:
        raw[:] = rng.randbytes(rng.randrange(1, 200))
    return bytes(raw)


@dataclass
class Tally:
    """What was done, and what must not have happened."""

    frames: int = 0
    """Mutated or made up; honest ones around them are not counted."""
    finished: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)


class Listener(logging.Handler):
    """Collects what a loop calls unexpected."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(logging.ERROR)
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, with where it came from."""
        self._tally.errors.append(logging.Formatter().format(record))


@contextmanager
def watched() -> Iterator[Tally]:
    """A tally that also hears of exceptions nobody foresaw."""
    tally, log = Tally(), logging.getLogger("pcp.runtime")
    listener = Listener(tally)
    log.addHandler(listener)
    try:
        yield tally
    finally:
        log.removeHandler(listener)


class Victim:
    """Rank 0 of two, whose peer is a bare socket, once it is `admit`ted."""

    def __init__(self, loop: Loop, shared: bool, striped: bool = False) -> None:
        self._loop, self._shared, self._striped = loop, shared, striped
        self._ours, self.sock = socket.socketpair()
        self._second, self.stream = socket.socketpair()
        self.stream.settimeout(10)
        self.sock.settimeout(10)
        self.group = Group(loop, 0, 2, EPOCH, HeartbeatOptions(5.0, 60.0))
        self.comm = Communicator(self.group)

    def admit(self) -> None:
        """Have the peer; called by the loop."""
        loop = self._loop
        link = TcpLink(loop, self._ours, self.group, "the fuzzer")
        link.read_ahead()
        if self._striped:
            other = TcpLink(loop, self._second, self.group, "the fuzzer's stream")
            self.group.admit(1, StripedLink(loop, [link, other]))
            return
        self._second.close()
        self.group.admit(1, SharedLink(link) if self._shared else link)

    def close(self) -> None:
        """Hang up on both sides."""
        self.sock.close()
        self.stream.close()
        self.comm._crash()


class Conversation:
    """One connection: an honest beginning, then what is not, then the end.

    The operation is posted before or after; it must end, well or not.
    """

    def __init__(
        self, loop: Loop, rng: random.Random, script: list[Frame], start: Any
    ) -> None:
        self._rng, self._script, self._start = rng, script, start
        luck = rng.random()
        self._striped, self._early = luck > 0.8, rng.random() < 0.8
        self.victim = Victim(loop, shared=luck < 0.3, striped=self._striped)
        self._pending: Any = None

    def post(self) -> None:
        """Begin the operation, if that comes first."""
        if self._early:
            self._pending = self._start(self.victim.comm)

    def speak(self, tally: Tally) -> None:
        """Say all; and begin the operation, if that comes last."""
        rng, victim = self._rng, self.victim
        try:
            if self._striped:
                bad = mutated(rng, Frame(Kind.DATA, payload=rng.randbytes(900)))
                victim.stream.sendall(wire(rng, bad, EPOCH))
                tally.frames += 1
            victim.sock.sendall(b"".join(_burst(rng, self._script, tally)))
            victim.sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has had enough of us
        self._pending = self._pending or self._start(victim.comm)

    def end(self, tally: Tally) -> None:
        """Until the operation has ended."""
        try:
            self._pending.result(20)
            tally.finished += 1
        except RuntimeFault:
            tally.failed += 1


def converse(loop: Loop, talks: Sequence[Conversation], tally: Tally) -> None:
    """Have these conversations at once: the loop is woken once for all of them."""
    try:
        loop.ask(lambda: [talk.victim.admit() for talk in talks])
        for talk in talks:
            talk.post()
        loop.ask(lambda: None)  # posted: data may come from now on
        for talk in talks:
            talk.speak(tally)
        for talk in talks:
            talk.end(tally)
    finally:
        for talk in talks:
            talk.victim.close()


def _burst(rng: random.Random, script: list[Frame], tally: Tally) -> Iterator[bytes]:
    at = rng.randrange(len(script) + 1)
    for frame in script[:at]:
        yield pack_header(frame, EPOCH) + bytes(frame.payload)
    for _ in range(rng.choice((1, 2, 3))):
        frame = rng.choice(script[at : at + 2] or script)
        if rng.random() < 0.05:
            place = rng.choice(EDGES).to_bytes(4, "big"), rng.choice((0, 900, 1 << 20))
            said = place[0] + place[1].to_bytes(4, "big")
            frame = Frame(Kind.SHARED, frame.tag, frame.seq, payload=said)
        elif rng.random() < 0.85:
            frame = mutated(rng, frame)
        else:
            frame = anything(rng)
        tally.frames += 1
        yield wire(rng, frame, EPOCH)
    for frame in script[at:]:
        yield pack_header(frame, EPOCH) + bytes(frame.payload)


def fuzz_operations(frames: int, seed: int, tally: Tally, at_once: int = 16) -> None:
    """`frames` bad frames to members that are in a group or in an operation.

    To `at_once` members of one loop, each in a group of its own.
    """
    rng = random.Random(seed)
    said = scripts()
    loop = Loop("pcp-fuzz")
    try:
        until = tally.frames + frames
        while tally.frames < until:
            names = [rng.choice(list(said)) for _ in range(at_once)]
            talks = [Conversation(loop, rng, said[n], OPERATIONS[n]) for n in names]
            converse(loop, talks, tally)
            assert not tally.errors, f"{names}: {tally.errors[0]}"
    finally:
        loop.close()
