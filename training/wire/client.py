"""A worker's connection to its shepherd: dials, dials again, sends heartbeats.

One thread reads, one sends heartbeats. When the connection is lost, the reading thread
dials again with growing pauses and sends a new `Hello`, while the worker's own thread
keeps on computing. Messages of the worker are dropped meanwhile: the next `Hello`
carries all that the shepherd needs.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.errors import (
    PcpError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    StateMismatch,
    Timeout,
)
from pcp.runtime.transport.credentials import Protection
from pcp.training.wire.channel import OPEN, Channel, NotAdmitted, connect
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Expects,
    Failed,
    Heartbeat,
    Hello,
    Refused,
    Shutdown,
    Welcome,
)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
DIAL_SECONDS = 5.0
STANDBY_SECONDS = 1.5
"""The limit of a dial among several shepherds: another one may lead by now."""
WATCH_SECONDS = 0.5
LAST_WORDS_SECONDS = 2.0
"""Messages that a shepherd sent before its connection broke arrive within so long."""
LAST_STEP_SECONDS = 600.0
"""A worker ends its inner step before it hears of the run's end."""
WELCOME_SECONDS = 600.0  # the shepherd may have to compile for our target first


class RefusedByShepherd(ProtocolError):
    """The shepherd refused this worker; dialling again would not help."""


@dataclass(frozen=True)
class Timing:
    """Seconds between heartbeats before the first `Welcome`, and limits of waits."""

    heartbeat: float = 0.5
    silence: float = 10.0
    patience: float = 300.0
    still: float = 30.0
    """For so long a heartbeat may be under way: sending one is given up before."""


class ShepherdLink:
    """The connection of a worker to the shepherd that leads.

    One of the `shepherds`, hosts and ports, leads: they are dialled in turn.
    `introduce()` makes a `Hello`. `expected(expects)` raises if this machine's data are
    not the expected ones, and may take as long as reading them takes.
    `welcomed(welcome, bundle)` and `received(message)` are called in the reading thread
    and must not block for long. `beat()` makes a heartbeat. `failed(error)` is called
    once: when no shepherd has answered for `Timing.patience`, or when the shepherd
    refused the worker. `stalled(reason)` is called in a thread of its own when no
    heartbeat can be made, as a thread that hangs has what the others need, or when
    nobody calls `close()` for `LAST_STEP_SECONDS` after the run's end.
    """

    def __init__(
        self,
        shepherds: Sequence[tuple[str, int]],
        *,
        introduce: Callable[[], Hello],
        expected: Callable[[Expects], None],
        welcomed: Callable[[Welcome, bytes], None],
        received: Callable[[Message], None],
        failed: Callable[[PcpError], None],
        log: Callable[[str], None],
        timing: Timing,
        beat: Callable[[], Heartbeat] = Heartbeat,
        stalled: Callable[[str], None] = lambda reason: None,
        protection: Protection = OPEN,
    ) -> None:
        self._shepherds, self._at = shepherds, 0
        self._protection = protection
        self._introduce, self._welcomed = introduce, welcomed
        self._expected = expected
        self._received, self._failed, self._log = received, failed, log
        self._timing, self._heartbeat = timing, timing.heartbeat
        self._make_beat, self._stalled = beat, stalled
        self._beats = 0
        self._channel: Channel | None = None
        self._broken_at: float | None = None
        """When a message could not be sent over this channel; None: all were."""
        self._closing = threading.Event()
        """Nothing more is awaited from a shepherd."""
        self._closed = threading.Event()
        """The worker's own thread came to its end too."""
        self._renewed = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"link-{work.__name__}")
            for work in (self._run, self._beat, self._watch)
        ]

    def start(self) -> None:
        """Begin to connect."""
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        """Send if connected; if not, the next `Hello` makes up for the message."""
        channel = self._channel
        if channel is None or self._broken_at is not None:
            return
        try:
            channel.send(message)
        except PeerLost:
            # Not closed: the shepherd's last messages, as a Shutdown, may be unread.
            self._broken_at = time.monotonic()

    def again(self) -> None:
        """Connect anew, with a new `Hello`."""
        self._renewed.set()
        if (channel := self._channel) is not None:
            channel.close()

    def close(self) -> None:
        """Disconnect for good."""
        self._closing.set()
        self._closed.set()
        if (channel := self._channel) is not None:
            channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _run(self) -> None:
        pause, since, told = FIRST_PAUSE, time.monotonic(), False
        draw = random.Random()  # the process's own belongs to the main thread
        while not self._closing.is_set():
            try:
                self._session()
            except (RefusedByShepherd, StateMismatch) as error:
                self._failed(error)
                return
            except RuntimeFault as error:
                if self._closing.is_set():
                    return
                if self._channel is not None:  # was connected: count from now
                    self._log(f"lost the shepherd: {error}; dialling again")
                    pause, since, told = FIRST_PAUSE, time.monotonic(), True
                    self._channel = None
                if time.monotonic() - since > self._timing.patience:
                    self._failed(error)
                    return
                if not told:
                    told, patience = True, self._timing.patience
                    self._log(f"{error}; trying again, for {patience:g} s")
            except PcpError as error:  # the worker's data cannot be read
                self._failed(error)
                return
            except Exception as error:  # of this machine: no files, no memory
                kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
                what = f"{kind}{error}"
                self._failed(RuntimeFault(f"the connection to the shepherd: {what}"))
                return
            self._at = (self._at + 1) % len(self._shepherds)
            # Random pauses, so that workers do not all dial at once.
            self._closing.wait(pause * draw.uniform(0.7, 1.0))
            if not self._at:
                longest = LONGEST_PAUSE / len(self._shepherds)
                pause = min(longest, pause * 2)

    def _session(self) -> None:
        channel = self._connect()
        try:
            self._renewed.clear()
            channel.send(self._hello(channel))
            welcome = self._answer(channel)
            bundle = channel.receive_blob(welcome.bundle_bytes, self._timing.silence)
            self._heartbeat = welcome.heartbeat_seconds
            self._welcomed(welcome, bundle)
            self._channel, self._broken_at = channel, None
            while not self._closing.is_set():
                if self._renewed.is_set():
                    raise PeerLost("what this worker holds has changed")
                message = channel.receive(self._seconds_left(channel))
                if not isinstance(message, Heartbeat):
                    self._received(message)
                if isinstance(message, Shutdown):
                    self._closing.set()
        finally:
            channel.close()

    def _hello(self, channel: Channel) -> Hello:
        said = self._introduce()
        return said.model_copy(update={"round_trip": channel.round_trip})

    def _seconds_left(self, channel: Channel) -> float:
        """Seconds to wait for the next message."""
        if self._broken_at is None:
            return self._timing.silence
        left = self._broken_at + LAST_WORDS_SECONDS - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{channel.peer} no longer reads messages")
        return left

    def _connect(self) -> Channel:
        try:
            host, port = self._shepherds[self._at]
            patience = DIAL_SECONDS if len(self._shepherds) == 1 else STANDBY_SECONDS
            return connect(host, port, patience, self._protection)
        except NotAdmitted as error:
            raise RefusedByShepherd(str(error)) from error

    def _answer(self, channel: Channel) -> Welcome:
        """The `Welcome`; until it comes, heartbeats show that the shepherd lives."""
        deadline = time.monotonic() + WELCOME_SECONDS
        while time.monotonic() < deadline:
            channel.send(Heartbeat())
            try:
                message = channel.receive(self._timing.silence)
            except Timeout as error:
                raise PeerLost(f"no welcome from {channel.peer}") from error
            except NotAdmitted as error:
                raise RefusedByShepherd(
                    f"the shepherd at {channel.peer} refused this worker: {error}"
                ) from error
            if isinstance(message, Refused):
                raise RefusedByShepherd(
                    f"the shepherd at {channel.peer} refused this worker: "
                    f"{message.reason}"
                )
            if isinstance(message, Welcome):
                return message
            if isinstance(message, Expects):
                self._agree(channel, message)
                continue
            if isinstance(message, Shutdown):
                self._received(message)
                self._closing.set()
                raise PeerLost(f"{channel.peer} has no work: {message.reason}")
            if not isinstance(message, Heartbeat):
                raise ProtocolError(f"{message} in place of a welcome")
        raise PeerLost(f"{channel.peer} gave no welcome in {WELCOME_SECONDS:g} s")

    def _agree(self, channel: Channel, expects: Expects) -> None:
        """Check the worker's data against the run's; answer `Hello` or `Failed`."""
        try:
            self._expected(expects)
        except PcpError as error:
            channel.send(Failed(reason=str(error)[:4000]))
            raise
        channel.send(self._hello(channel))

    def _beat(self) -> None:
        while not self._closed.wait(self._heartbeat):
            self.send(self._make_beat())
            self._beats += 1

    def _watch(self) -> None:
        """Count seconds in which this process ran, and no heartbeat was made.

        By turns of its own, not by the clock: a process that was stopped is no worse.
        The end of the run is no excuse: who hangs then would stay for ever.
        """
        seen, seconds, ended = 0, 0.0, 0.0
        while not self._closed.wait(WATCH_SECONDS):
            seconds = seconds + WATCH_SECONDS if self._beats == seen else 0.0
            ended = ended + WATCH_SECONDS if self._closing.is_set() else 0.0
            seen = self._beats
            if seconds > self._heartbeat + self._timing.still:
                self._stalled(f"no heartbeat can be made for {seconds:.0f} s")
                return
            if ended > LAST_STEP_SECONDS:
                self._stalled(f"the run is over, and it goes on for {ended:.0f} s")
                return
