"""The messages of an operator to a shepherd, and the answers."""

from typing import Any, Literal

from pcp.training.wire.message import VERSION, Count, Message, Name, Text


class StatusQuery(Message, frozen=True):
    """Asks for the status of a run, in place of a `Hello`."""

    kind: Literal["status_query"] = "status_query"
    version: int = VERSION


class Order(Message, frozen=True):
    """An operator's order, in place of a `Hello`; see `operator_control`."""

    kind: Literal["order"] = "order"
    version: int = VERSION
    key: Name
    action: Literal["pause", "resume", "steps", "drain", "cancel"]
    worker: Count | None = None
    """The index of the worker to drain."""
    steps: Count | None = None
    """Inner steps a round."""


class Taken(Message, frozen=True):
    """The answer to an `Order`: the shepherd will carry it out."""

    kind: Literal["taken"] = "taken"
    said: Text


class Status(Message, frozen=True):
    """The answer to a `StatusQuery`."""

    kind: Literal["status"] = "status"
    values: dict[str, Any]
