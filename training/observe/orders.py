"""Orders to the shepherd of a run, from processes that have the run's key.

Commands call `give`; a `Desk` takes the orders of a page. The key is in the run's
folder, which only its owner can read (`pcp.training.storage.control_file`). A browser
does not send the key by itself, as it sends cookies: a page of another site cannot give
orders.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from pcp.errors import ConfigError, PcpError, ProtocolError
from pcp.runtime.transport.credentials import Protection
from pcp.training.storage.control_file import read_control
from pcp.training.wire.channel import OPEN, connect
from pcp.training.wire.messages import (
    Heartbeat,
    Refused,
)
from pcp.training.wire.operator_messages import (
    Order,
    Taken,
)

MOST_BYTES = 4096
"""The most bytes of a page's order."""
_SECONDS = 5.0


def give(
    folder: Path,
    order: Mapping[str, object],
    host: str | None,
    timeout: float,
    protected: Protection = OPEN,
) -> str:
    """The shepherd's answer to an order for the run in `folder`, or ConfigError."""
    control = read_control(folder)
    where = host or control["host"]
    channel = connect(where, control["port"], timeout, protected)
    try:
        channel.send(Order.model_validate({**order, "key": control["key"]}))
        answer = channel.receive(timeout)
        while isinstance(answer, Heartbeat):
            answer = channel.receive(timeout)
    finally:
        channel.close()
    if isinstance(answer, Refused):
        raise ConfigError(answer.reason)
    if not isinstance(answer, Taken):
        raise ProtocolError(f"the shepherd answered with {answer.kind!r}")
    return answer.said


@dataclass(frozen=True)
class Desk:
    """Takes a page's orders for the run in `folder`.

    Requests are not encrypted: those from other machines are refused, unless
    `anywhere`.
    """

    folder: Path
    protected: Protection = OPEN
    anywhere: bool = False

    def take(self, key: str, body: bytes) -> tuple[int, str]:
        """An HTTP status, and the shepherd's answer or the reason of a refusal."""
        try:
            wanted = read_control(self.folder)["key"]
            if not hmac.compare_digest(key.encode(), wanted.encode()):
                return 401, "the key is not this run's: `pcp control key` prints it"
            order = _order(body)
            return 200, give(self.folder, order, None, _SECONDS, self.protected)
        except ConfigError as error:
            return 409, str(error)
        except (PcpError, OSError) as error:
            return 502, str(error)


def reach(desk: Desk | None) -> str | None:
    """The pages that may give orders: those `here`, `anywhere`, or none."""
    return desk and ("anywhere" if desk.anywhere else "here")


def _order(body: bytes) -> dict[str, object]:
    """The order that a page sent, or the fault of its body."""
    try:
        values = from_json(body)
        Order.model_validate({**values, "key": "k"})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"that is no order: {_first(error)}") from error
    return values


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
    return str(error).splitlines()[0]
