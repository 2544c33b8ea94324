"""Fault injection: lost, delayed or damaged frames, crashed members, slow networks.

Tests and drills give a plan to an endpoint or a communicator; the plan counts its
faults, so that a test can tell a survived fault from one that was never injected.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.frame import HEADER_BYTES, Frame, Kind, checksum
from pcp.runtime.transport.link import Link

Action = Literal["drop", "delay", "corrupt", "crash", "kill"]


class Target(Protocol):
    """The group whose frames a plan changes."""

    loop: Loop

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        """Run something later."""
        ...

    def close(self, *, crash: bool = False) -> None:
        """Cut all connections."""
        ...


@dataclass
class Fault:
    """One fault, injected when a matching frame is sent.

    Fields that are None match every frame. `skip` lets that many matches pass
    first; after `times` the fault is spent. `delay` waits `seconds`; `crash`
    cuts all connections of the member; `kill` is SIGKILL to its process.
    """

    action: Action
    kind: Kind | None = Kind.DATA
    step: int | None = None
    peer: int | None = None
    skip: int = 0
    times: int = 1
    seconds: float = 0.0
    seen: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)

    def claims(self, peer: int, frame: Frame) -> bool:
        """Whether the fault takes this frame; counts matches."""
        wanted = ((self.kind, frame.kind), (self.step, frame.step), (self.peer, peer))
        if any(want is not None and want != have for want, have in wanted):
            return False
        self.seen += 1
        if self.seen <= self.skip or self.fired >= self.times:
            return False
        self.fired += 1
        return True


@dataclass
class Shape:
    """A slow network to a peer: frames go at a rate, and arrive later. Order is kept.

    `peer=None` shapes the links to all peers, each by itself.
    """

    peer: int | None = None
    bytes_per_second: float = float("inf")
    delay: float = 0.0
    """Seconds one way."""
    _free: dict[Link, float] = field(default_factory=dict, repr=False)
    _due: dict[Link, deque[tuple[float, Frame]]] = field(
        default_factory=dict, repr=False
    )

    def send(self, group: Target, link: Link, frame: Frame) -> None:
        """Send a frame when the slow network would have delivered it."""
        now, queue = time.monotonic(), self._due.setdefault(link, deque())
        size = HEADER_BYTES + len(frame.payload)
        start = max(now, self._free.get(link, 0.0))
        self._free[link] = start + size / self.bytes_per_second
        queue.append((self._free[link] + self.delay, frame))
        if len(queue) == 1:
            group.later(queue[0][0] - now, lambda: self._release(group, link))

    def _release(self, group: Target, link: Link) -> None:
        queue, now = self._due[link], time.monotonic()
        while queue and queue[0][0] <= now:
            link.send(queue.popleft()[1])
        if queue:
            group.later(queue[0][0] - now, lambda: self._release(group, link))


@dataclass
class FaultPlan:
    """The faults of the frames that one member sends, in order of precedence."""

    faults: Sequence[Fault] = field(default_factory=list)
    shapes: Sequence[Shape] = field(default_factory=list)
    _held: dict[Link, list[Frame]] = field(default_factory=dict, repr=False)

    @property
    def fired(self) -> int:
        """How many faults have happened."""
        return sum(fault.fired for fault in self.faults)

    def send(self, group: Target, peer: int, link: Link, frame: Frame) -> None:
        """Send a frame, or inject a fault instead."""
        if link in self._held:
            self._held[link].append(frame)
            return
        for fault in self.faults:
            if fault.claims(peer, frame):
                if fault.action == "delay":
                    self._hold(fault, group, link, frame)
                    return
                _ACTIONS[fault.action](fault, group, link, frame)
                return
        for shape in self.shapes:
            if shape.peer in (None, peer):
                shape.send(group, link, frame)
                return
        link.send(frame)

    def _hold(self, fault: Fault, group: Target, link: Link, frame: Frame) -> None:
        """Delay a frame and the ones behind it on its link: order is kept."""
        self._held[link] = [frame]

        def release() -> None:
            for waiting in self._held.pop(link):
                link.send(waiting)

        group.later(fault.seconds, release)


def _drop(fault: Fault, group: Target, link: Link, frame: Frame) -> None:
    if frame.on_sent is not None:
        group.loop.call(frame.on_sent)


def _corrupt(fault: Fault, group: Target, link: Link, frame: Frame) -> None:
    payload = bytearray(frame.payload)
    frame.checksum = checksum(frame.payload)
    if payload:
        payload[len(payload) // 2] ^= 0x10
        frame.payload = bytes(payload)
    else:
        frame.checksum ^= 1
    link.send(frame)


def _crash(fault: Fault, group: Target, link: Link, frame: Frame) -> None:
    group.loop.call(lambda: group.close(crash=True))


def _kill(fault: Fault, group: Target, link: Link, frame: Frame) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_ACTIONS = {
    "drop": _drop,
    "corrupt": _corrupt,
    "crash": _crash,
    "kill": _kill,
}
