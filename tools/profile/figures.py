"""What is measured, and what is known, of the kernels of a function."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dispatch:
    """A kernel: what one call of it does.

    `flops` are the float operations of its loops, a function such as `exp` counted as
    one; `bytes` is the size of all operands and results; `line` the line of the program
    that its last loop comes from, 0 if none is known.
    """

    flops: int
    bytes: int
    line: int


@dataclass(frozen=True)
class Timed:
    """A dispatch in one call of the function: how often, and milliseconds in all."""

    name: str
    calls: int
    ms: float


@dataclass(frozen=True)
class Times:
    """The milliseconds of one call, and those of its dispatches, longest first."""

    ms: float
    dispatches: list[Timed]


@dataclass(frozen=True)
class Peak:
    """What one thread of this machine reaches: float operations and bytes a second."""

    flops: float
    bytes: float

    def best(self, other: "Peak") -> "Peak":
        """The larger of each."""
        return Peak(max(self.flops, other.flops), max(self.bytes, other.bytes))
