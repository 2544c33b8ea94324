"""First values by name: `normal(0.02)`, `uniform(-1,1)`, `ones`.

A model says in `pcp.init` how each parameter begins, and the manifest of its bundle has
the same text. `normal(std)`, `normal(mean,std)`, `uniform(low,high)`, `ones`, `zeros`
and `constant(value)`. `norms(dimension,name)` are the lengths of the vectors along a
dimension of the frozen matrix of that name: no seed makes them, they come with it.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from pcp.errors import ConfigError, nearest

RANDOM = ("normal", "uniform")
DEFAULT_STD = 0.02

FROM_PARAMETERS = "@inner_init"
"""In the place of an initializer: that function of the bundle makes the tensor."""

NORMS = "norms"

COUNTS = {"normal": (1, 2), "uniform": (2,), "constant": (1,), "ones": (), "zeros": ()}
"""How many numbers each kind takes."""

_FILLS: dict[str, Callable[..., float]] = {
    "ones": lambda: 1.0,
    "zeros": lambda: 0.0,
    "constant": lambda value: value,
}


@dataclass(frozen=True)
class Init:
    """A parsed initializer: its kind and its numbers.

    `of` is the frozen tensor that it follows from; empty where a seed says enough.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    of: str = ""

    def __str__(self) -> str:
        """The text that `parse` reads it from."""
        if self.of:
            return f"{self.kind}({self.dimension},{self.of})"
        numbers = ",".join(repr(float(x)) for x in self.numbers)
        return f"{self.kind}({numbers})" if numbers else self.kind

    @property
    def random(self) -> bool:
        """Whether it draws numbers at all."""
        return self.kind in RANDOM

    @property
    def dimension(self) -> int:
        """Of `norms`: along which dimension of the matrix."""
        return int(self.numbers[0])

    @property
    def fill(self) -> float:
        """The value at every position, of one that draws nothing."""
        return _FILLS[self.kind](*self.numbers)

    @property
    def affine(self) -> tuple[float, float]:
        """Of one that draws: the factor of the drawn number, and the term behind it."""
        if self.kind == "uniform":
            low, high = self.numbers
            return high - low, low
        *mean, std = self.numbers
        return std, mean[0] if mean else 0.0


def parse(text: str) -> Init:
    """Read `normal(0.02)` and the like; `ConfigError` says what is wrong."""
    if match := re.fullmatch(rf"{NORMS}\(([01]),(.+)\)", text):
        return Init(NORMS, (float(match.group(1)),), match.group(2))
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    kind = match.group(1) if match else text
    if match is None or kind not in COUNTS:
        known = "normal(std), normal(mean,std), uniform(low,high), constant(c), "
        raise ConfigError(
            f"no initializer {text!r} (known: {known}ones, zeros)."
            + nearest(kind, COUNTS)
        )
    numbers = _numbers(match.group(2) or "", text)
    if len(numbers) not in (COUNTS[kind] or (0,)):
        raise ConfigError(f"initializer {text!r} has {len(numbers)} numbers")
    return Init(kind, numbers)


def _numbers(text: str, whole: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"initializer {whole!r}: {error}") from error
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"initializer {whole!r} has a number that is not finite")
    return numbers
