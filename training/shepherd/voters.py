"""The shell of an election: connections to other voters, and a vote on disk.

Each voter listens on its own of `addresses` and dials the others; it sends its messages
over the connections that it dialled. All decisions are those of
`pcp.training.coordinator.standby.election`, under one lock.
"""

import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

from pcp import outside, strict_json, whole_file
from pcp.errors import ConfigError, PcpError, RuntimeFault
from pcp.runtime.transport import link
from pcp.runtime.transport.authentication import Gate, checked
from pcp.runtime.transport.credentials import Protection
from pcp.training.coordinator.standby.election import (
    Effect,
    Election,
    Persist,
    SendTo,
)
from pcp.training.shepherd.elector import Elector
from pcp.training.wire.channel import SHEPHERD, Channel
from pcp.training.wire.shepherd_messages import MAX_VOTERS, Lines, VoterMessage, decode

FILE = "election.json"
_TURN = 0.03
_DIAL_SECONDS = 1.0
_IDLE_SECONDS = 30.0
_QUEUED = 64
_MOST_PEERS = 4 * MAX_VOTERS


class Voters(Elector):
    """The elector of the voters of a run."""

    _end_seconds = 0.2

    def __init__(
        self,
        addresses: Sequence[str],
        me: int,
        protection: Protection,
        path: Path,
        log: Callable[[str], None],
    ) -> None:
        """`path` is the ledger's; ConfigError for impossible voters (`_check`)."""
        _check(addresses, me)
        self._addresses, self._me, self._protection = addresses, me, protection
        self._folder = path.parent
        super().__init__(path, log)
        self._machine = self._election = Election(
            me,
            len(addresses),
            self.copy,
            self._persisted(),
            time.monotonic(),
            random.Random(os.urandom(16)),
        )
        self._listener = link.listen(addresses[me])
        self._listener.setblocking(True)
        peers = [number for number in range(len(addresses)) if number != me]
        self._queues: dict[int, queue.Queue[VoterMessage]] = {
            peer: queue.Queue(_QUEUED) for peer in peers
        }
        self._channels: set[Channel] = set()
        self._start("voters", self._accept)
        self._start("voters-time", self._tick)
        for peer in peers:
            self._start(f"voter-{peer}", self._send_to, peer)

    def close(self) -> None:
        """Take no part any more."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        self.copy.release()

    # Effects ----------------------------------------------------------------------

    def _carry_out(self, effect: Persist | SendTo) -> None:
        if isinstance(effect, Persist):
            self._persist(effect)
        else:
            self._queue(effect.to, effect.message)

    def _queue(self, to: int, message: VoterMessage) -> None:
        """Queue a message; a full queue drops the oldest: it will be sent again."""
        waiting = self._queues[to]
        while True:
            try:
                waiting.put_nowait(message)
                return
            except queue.Full:
                with suppress(queue.Empty):
                    waiting.get_nowait()

    def _persisted(self) -> tuple[int, int | None] | None:
        path = self._folder / FILE
        if not path.exists():
            return None
        try:
            found = outside.read_json(path)
            return int(found["term"]), found["voted_for"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: cannot be read ({error}); a shepherd that has lost its vote "
                "begins with an empty folder"
            ) from error

    def _persist(self, effect: Persist) -> None:
        said = {"term": effect.term, "voted_for": effect.voted_for}
        with whole_file.replacing(self._folder / FILE, durable=True) as file:
            file.write(strict_json.dumps(said).encode())

    # Threads ----------------------------------------------------------------------

    def _tick(self) -> None:
        while not self._closing.wait(_TURN):
            with self._lock:
                self._attempt(lambda: self._election.tick(time.monotonic()))

    def _heard(self, message: VoterMessage) -> list[Effect]:
        return self._election.heard(message, time.monotonic())

    def _attempt(self, step: Callable[[], list[Effect]]) -> None:
        """Carry out the effects of a step; a failing disk ends this voter's part."""
        try:
            self._perform(step())
        except OSError as error:
            self._fail(RuntimeFault(f"this shepherd's folder: {error}"))

    def _send_to(self, peer: int) -> None:
        """Send the messages for one of the other voters; dial while it is away."""
        address = self._addresses[peer]
        while not self._closing.is_set():
            try:
                wire = self._protection.dial(address, _DIAL_SECONDS, (SHEPHERD,))
            except PcpError:
                self._closing.wait(0.1)
                continue
            channel = self._kept(Channel(wire))
            try:
                while not self._closing.is_set():
                    with suppress(queue.Empty):
                        channel.send(self._queues[peer].get(timeout=0.5), 2.0)
            except PcpError:
                pass
            finally:
                self._drop(channel)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                arrival = link.accept(self._listener)
            except RuntimeFault:
                self._closing.wait(0.2)
                continue
            if arrival is None:
                continue
            sock, _ = arrival
            with self._lock:
                full = len(self._channels) >= _MOST_PEERS
            if full:
                sock.close()
                continue
            tls = self._protection.tls
            wire = sock if tls is None else tls.serve(sock, (SHEPHERD,))
            gate = Gate(checked(self._protection.key), wire)
            channel = self._kept(Channel(wire, gate, decode))
            threading.Thread(
                target=self._listen_to, args=(channel,), daemon=True, name="voters-peer"
            ).start()

    def _listen_to(self, channel: Channel) -> None:
        """Handle the messages of one of the other voters."""
        try:
            channel.admit(_DIAL_SECONDS * 5)
            while not self._closing.is_set():
                message = cast(VoterMessage, channel.receive(_IDLE_SECONDS))
                with self._lock:
                    if channel.identity is not None:
                        self.identities.add(channel.identity.id)
                    if isinstance(message, Lines) and self.copy.released:
                        continue  # this shepherd led, and has yet to close the ledger
                    self._attempt(partial(self._heard, message))
        except PcpError:
            pass  # a voter dials again
        finally:
            self._drop(channel)

    def _kept(self, channel: Channel) -> Channel:
        with self._lock:
            self._channels.add(channel)
        return channel

    def _drop(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)
        channel.close()


def _check(addresses: Sequence[str], me: int) -> None:
    """ConfigError for voters without a majority, or an index that is not theirs."""
    count = len(addresses)
    if count % 2 == 0 or not 3 <= count <= MAX_VOTERS:
        raise ConfigError(
            f"--voters: {count} shepherds; an odd number of them votes, 3 to "
            f"{MAX_VOTERS}: of an even number one more could not die"
        )
    if len(set(addresses)) != count:
        raise ConfigError("--voters: two shepherds have one address")
    if not 0 <= me < count:
        raise ConfigError(f"--voter {me}: --voters has 0 to {count - 1}")
