"""A link that carries nothing: what is sent stays where a test can look at it."""

import time

from pcp.runtime.transport.frame import Frame
from pcp.runtime.transport.link import Sink


class SilentLink:
    """`pcp.runtime.transport.link.Link` to a peer that never answers."""

    sink: Sink
    label, epoch, alive, round_trip = "a silent peer", 1, True, 0.0

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.bytes_sent = self.bytes_received = 0
        self.last_heard = self.last_sent = time.monotonic()

    def send(self, frame: Frame) -> None:
        """Keep it."""
        self.frames.append(frame)

    def recall(self, tag: int, seq: int) -> None:
        """Nothing is queued."""

    def exhaust(self) -> None:
        """Nothing has arrived."""

    def close(self, *, flush: float = 0.0) -> None:
        """The end."""
        self.alive = False

    def sever(self) -> None:
        """The end, as a crash makes it."""
        self.alive = False
