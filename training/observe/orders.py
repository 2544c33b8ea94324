"""Orders to the shepherd of a run, from whoever has the run's key.

`give` is how a command gives one; a `Desk` takes them from a page. The key is in the
run's folder, which only its owner reads (`pcp.training.storage.control_file`), and it
never comes by itself, as a cookie would: a page of another site cannot give orders.
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
"""Of an order that comes by a page."""
_SECONDS = 5.0


def give(
    folder: Path,
    order: Mapping[str, object],
    host: str | None,
    timeout: float,
    protected: Protection = OPEN,
) -> str:
    """What the shepherd of the run in `folder` says to an order; ConfigError: no."""
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
    """Where a page's orders for the run in `folder` are taken.

    Its requests are not encrypted: unless `anywhere`, who is on another machine is
    refused.
    """

    folder: Path
    protected: Protection = OPEN
    anywhere: bool = False

    def take(self, key: str, body: bytes) -> tuple[int, str]:
        """An HTTP status, and what the shepherd says or why nothing will happen."""
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
    """From where a page may give orders: `here`, `anywhere`, or nowhere."""
    return desk and ("anywhere" if desk.anywhere else "here")


def _order(body: bytes) -> dict[str, object]:
    """What a page sent, as far as it is an order."""
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
