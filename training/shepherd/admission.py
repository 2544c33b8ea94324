"""Admission: which messages reach a run.

Those of a name's own identity, of workers with the run's data, and orders with the
run's key.
"""

import hmac
from typing import Any

from pcp.training.coordinator.events import Ordered, Received
from pcp.training.storage.control_file import CONTROL_FILE
from pcp.training.wire.message import VERSION
from pcp.training.wire.messages import Expects, Hello
from pcp.training.wire.operator_messages import Order


class Admission:
    """The filter between a server and the run; it answers what does not reach the run.

    An order must have `key`, the run's. While the shepherd reads the data, hellos wait.
    """

    def __init__(self) -> None:
        self.key = ""
        self._names: dict[str, str] = {}
        """The identity that first used each worker's name."""
        self._expects: Expects | None = None
        self._early: list[Received] | None = None
        """Hellos that came while the data are read; None: no data are being read."""

    def wait(self) -> None:
        """Begin to hold hellos back: the data are being read."""
        self._early = []

    def expect(self, expects: Expects | None) -> list[Received]:
        """The data are read; returns the hellos that came meanwhile, to be admitted.

        `expects`: what the data of a worker must be; None: hellos say nothing of data.
        """
        self._expects = expects
        early, self._early = self._early or [], None
        return early

    def admit(self, arrived: Received) -> Received | Ordered | None:
        """The message for the run; None: it was refused, was answered, or waits."""
        message, connection = arrived.message, _connection(arrived)
        if why := self._stolen(arrived):
            connection.refuse(why)
        elif isinstance(message, Hello) and self._asked_back(arrived, message):
            return None
        elif not isinstance(message, Order):
            return arrived
        elif hmac.compare_digest(message.key.encode(), self.key.encode()):
            return Ordered(connection, message)
        else:
            connection.refuse(
                f"the key is not this run's; it is in {CONTROL_FILE} of the run's "
                "folder and new with every start of the shepherd"
            )
        return None

    def _asked_back(self, arrived: Received, hello: Hello) -> bool:
        """Whether a hello must come again, with the digest of the run's data."""
        if hello.version != VERSION:
            return False
        if self._early is not None:
            self._early.append(arrived)
            return True
        if self._expects is None or hello.data == self._expects.data:
            return False
        _connection(arrived).send(self._expects)
        return True

    def _stolen(self, arrived: Received) -> str | None:
        """Why a worker may not use its name: another identity has it; None: it may."""
        peer = getattr(arrived.connection, "identity", None)
        if peer is None or not isinstance(arrived.message, Hello):
            return None
        name = arrived.message.worker
        if self._names.setdefault(name, peer.id) == peer.id:
            return None
        return f"the name {name} belongs to another identity in this run"


def _connection(arrived: Received) -> Any:
    """The connection of a message, as the server made it."""
    return arrived.connection
