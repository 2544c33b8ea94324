"""A collective as a value: its arguments, and the operation that they ask for.

A subclass defines one collective. Its fields are the arguments (`collective_methods`
makes the methods of a communicator from them), `operation` checks them before any frame
is sent, writes the facts that all members must agree on into the descriptor, and
chooses the algorithm. Other engines carry out the same values
(`engines.engine.Engine`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from pcp.errors import UsageError
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation

R = TypeVar("R", covariant=True)
Seconds = float | timedelta | None
"""The time limit of a call; None for the communicator's."""


def seconds(value: float | timedelta) -> float:
    """A duration in seconds; UsageError if it is no number."""
    if not isinstance(value, timedelta | int | float | np.number):
        raise UsageError(f"a timeout is a number of seconds, not {value!r}")
    given = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if math.isnan(given):
        raise UsageError("a timeout of nan seconds would never be over")
    return given


@dataclass(frozen=True, eq=False)
class Call(Generic[R]):
    """One call of one member, whose value is an R."""

    name: ClassVar[str] = ""
    """The name of the method."""
    memory: ClassVar[str] = ""
    """The field with the array, or arrays, in whose memory the call works."""
    writes: ClassVar[bool] = False
    """Whether the call writes its result to that memory."""

    timeout: Seconds = field(default=None, kw_only=True)

    @property
    def given(self) -> Any:
        """The array, or arrays, of the field `memory`; None without one."""
        return getattr(self, self.memory) if self.memory else None

    def label(self, rank: int) -> str:
        """The tag by which members match the call; `rank` is this member's."""
        raise NotImplementedError

    def number(self) -> int | None:
        """The number of the call within its tag; None for the next one."""
        return None

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The operation for a member of a group; UsageError for wrong arguments."""
        raise NotImplementedError

    def options(self) -> Iterator[tuple[str, Any]]:
        """The options by name that differ from their defaults: name and value."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.kw_only and value is not one.default:
                yield one.name, value


@dataclass(frozen=True, eq=False)
class Tagged(Call[R]):
    """A call that members match by a tag and the number of calls with it."""

    tag: str = field(default="", kw_only=True)

    def label(self, rank: int) -> str:
        """The caller's tag."""
        return self.tag
