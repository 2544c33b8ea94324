"""Messages that reach a run: of a name's own identity, of workers with the run's data,
and orders with the run's key.
"""

import hmac
from typing import Any

from pcp.training.coordinator.events import Ordered, Received
from pcp.training.storage.control_file import CONTROL_FILE
from pcp.training.wire.message import VERSION
from pcp.training.wire.messages import Expects, Hello
from pcp.training.wire.operator_messages import Order


class Admission:
    """Between a server and the run: what is not for the run is answered here.

    `key` is the run's, which an order must have. While data are read, hellos wait.
    """

    def __init__(self) -> None:
        self.key = ""
        self._names: dict[str, str] = {}
        """Identities by the names that their workers have."""
        self._expects: Expects | None = None
        self._early: list[Received] | None = None
        """Hellos that came while the data are read; None: they are not being read."""

    def wait(self) -> None:
        """From now on the data are read."""
        self._early = []

    def expect(self, expects: Expects | None) -> list[Received]:
        """The data are read; returns the hellos that came meanwhile, to be heard now.

        `expects`: what a worker must have said of its own data; None: nothing.
        """
        self._expects = expects
        early, self._early = self._early or [], None
        return early

    def admit(self, arrived: Received) -> Received | Ordered | None:
        """What the run hears; None: it was refused, is asked back, or waits."""
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
        """Whether a worker has yet to say that it has the run's data."""
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
        """Why a worker may not have the name it says: another identity has it."""
        peer = getattr(arrived.connection, "identity", None)
        if peer is None or not isinstance(arrived.message, Hello):
            return None
        name = arrived.message.worker
        if self._names.setdefault(name, peer.id) == peer.id:
            return None
        return f"the name {name} is that of another identity in this run"


def _connection(arrived: Received) -> Any:
    """The connection of a message, as the server made it."""
    return arrived.connection
