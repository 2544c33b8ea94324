"""A collective as a value: its arguments, and the operation that they ask for.

A subclass is all there is to say about one collective. Its fields are what callers
pass (`collective_methods` makes the methods of a communicator from them), `operation`
checks them before anything is sent, says in the descriptor what all members must agree
on, and chooses the algorithm. Other engines carry out the same values
(`engines.engine.Engine`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.submit import Seconds

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, eq=False)
class Call(Generic[R]):
    """One call of one member, whose value is an R."""

    name: ClassVar[str] = ""
    """The method's."""
    memory: ClassVar[str] = ""
    """The field that holds the array, or arrays, whose memory it works on."""
    writes: ClassVar[bool] = False
    """Whether it writes its result there."""

    timeout: Seconds = field(default=None, kw_only=True)

    @property
    def given(self) -> Any:
        """What it works on; None for nothing."""
        return getattr(self, self.memory) if self.memory else None

    def label(self, rank: int) -> str:
        """The tag by which members match it, of this member's call."""
        raise NotImplementedError

    def number(self) -> int | None:
        """Which one of its tag it is; None for the next."""
        return None

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """What a member of pcp's own group does; UsageError for what cannot be."""
        raise NotImplementedError

    def options(self) -> Iterator[tuple[str, Any]]:
        """What was passed by name, and is not as it is by default."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.kw_only and value is not one.default:
                yield one.name, value


@dataclass(frozen=True, eq=False)
class Tagged(Call[R]):
    """A call that is matched by a tag and how often it was used."""

    tag: str = field(default="", kw_only=True)

    def label(self, rank: int) -> str:
        """The caller's tag."""
        return self.tag
