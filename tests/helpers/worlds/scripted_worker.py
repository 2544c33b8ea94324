"""A worker that says to a shepherd what a test has it say."""

import hashlib
import threading
import time
from typing import Any

from helpers.models.bigram_numpy import BLOCK

from pcp.errors import PeerLost
from pcp.training.data.lease_pool import size
from pcp.training.wire import messages
from pcp.training.wire.channel import connect
from pcp.training.wire.message import (
    VERSION,
    Message,
)

BEAT_SECONDS = 0.3
PATIENCE_SECONDS = 20.0


def digest_of(round_: int, branch: str = "") -> str:
    """A digest for the state of a round, in a history of this name."""
    return hashlib.sha256(f"{round_}{branch}".encode()).hexdigest()


def prepared(
    round_: int, epoch: int, steps: int, branch: str = ""
) -> messages.Prepared:
    """What who is done with a round says."""
    return messages.Prepared(
        round=round_,
        epoch=epoch,
        digest=digest_of(round_, branch),
        loss=1.0,
        loss_first=1.0,
        steps=steps,
        tokens=steps,
        bytes_sent=0,
        bytes_received=0,
        compute_seconds=0.1,
        exchange_seconds=0.1,
    )


class Puppet:
    """Says hello, and is alive from then on."""

    def __init__(self, port: int, name: str, **held: Any) -> None:
        """`held` is what its hello says that it holds."""
        self._channel = connect("127.0.0.1", port, 5)
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._say(
            messages.Hello(
                version=VERSION,
                worker=name,
                target="cpu",
                backend="cpu",
                device="local-task",
                address="127.0.0.1:9",
                **held,
            )
        )
        welcome: Any = self.hears("welcome")
        self._channel.receive_blob(welcome.bundle_bytes, 5)
        threading.Thread(target=self._live, daemon=True).start()

    def hears(self, kind: str) -> Any:
        """The next message, which is of this kind."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            message = self._channel.receive(max(0.01, until - time.monotonic()))
            if message.kind != "heartbeat":
                assert message.kind == kind, message
                return message

    def restores(self) -> messages.Restore:
        """Take what it is told to, and say so."""
        order = self.hears("restore")
        self.holds(order.round)
        return order

    def holds(self, round_: int, branch: str = "") -> None:
        """Say that it has the state of a round."""
        self._say(messages.Ready(round=round_, digest=digest_of(round_, branch)))

    def lacks(self, round_: int) -> None:
        """Say that the state of a round could not be fetched."""
        self._say(messages.Lacking(round=round_))

    def prepares(self, order: messages.RoundStart, branch: str = "") -> None:
        """Be done with a round."""
        self._say(messages.Computed(round=order.round, epoch=order.epoch))
        tokens = size(order.lease) * BLOCK
        done = prepared(order.round, order.epoch, order.steps, branch)
        self._say(done.model_copy(update={"tokens": tokens}))

    def makes(self, round_: int) -> None:
        """A round that it is alone in."""
        order = self.hears("round_start")
        assert order.round == round_
        self.prepares(order)
        assert self.hears("commit").round == round_

    def dies(self) -> None:
        """The connection breaks."""
        self._over.set()
        self._channel.close()

    def _say(self, message: Message) -> None:
        with self._sending:
            self._channel.send(message)

    def _live(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self._say(messages.Heartbeat())
            except PeerLost:  # the test has ended
                return
