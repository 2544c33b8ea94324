"""The functions of a decoder's program, by what they compute: `prefill_4x32_256`.

The frontend that writes the program and the engine that calls it share these names.
"""

import re
from dataclasses import dataclass

KINDS = ("prefill", "decode")
_NAME = re.compile(r"(prefill|decode)_(\d+x)?(\d+)_(\d+)")
_SIZE = re.compile(r"(?:([1-9]\d*)x)?([1-9]\d*)")

SAMPLERS = ("largest", "sample")
"""Functions of rows of logits: the most probable token of each, or a drawn one."""
ADJUST = "adjust"
"""The function that gives rows of logits with what a request wants of its tokens."""
CHANGES = ("bias", "factor", "less")
"""What changes a token's logit: `bias` is added, `factor` divides it (multiplies a
negative one), and `less` is taken away."""
CHANGED = 256
"""Tokens of a row and a part of the vocabulary that one call of `ADJUST` changes."""
ASKED = ("temperature", "low", "high", "positions", "top_k", "top_p", "min_p")
"""What `sample` is asked of a row, as 32-bit integers: floats by their bits."""
FIELDS = ("value", "token", "logit", "largest", "total", "finite", "sure")
"""What both give of a row and a part of the vocabulary: the largest number, with its
noise, its token and that one's logit; the largest logit, and the sum of all
exponentials less it; whether all are finite, and whether the token is known to be the
right one."""


def sampler(kind: str, rows: int) -> str:
    """The name of a function of `SAMPLERS`, or of `ADJUST`."""
    return f"{kind}_{rows}"


@dataclass(frozen=True)
class Phase:
    """A function: of which kind, for how many slots, with how many rows of each.

    `context` is how many positions of a slot its rows see.
    """

    kind: str
    slots: int
    rows: int
    context: int

    @classmethod
    def sized(cls, kind: str, size: str, context: int) -> "Phase | None":
        """By `4x32`, by the rows of a single slot's prefill, or by slots that decode.

        None where the size is none of these.
        """
        if not (match := _SIZE.fullmatch(size)):
            return None
        count = int(match[2])
        each = (1, count) if kind == "prefill" else (count, 1)
        return cls(kind, *((int(match[1]), count) if match[1] else each), context)

    @classmethod
    def named(cls, name: str) -> "Phase | None":
        """Whose `name` it is; None where it is no function of a decoder."""
        if not (match := _NAME.fullmatch(name)):
            return None
        return cls.sized(match[1], f"{match[2] or ''}{match[3]}", int(match[4]))

    @property
    def name(self) -> str:
        """Of the function."""
        size = f"{self.slots}x{self.rows}"
        if self.kind == "prefill" and self.slots == 1:
            size = f"{self.rows}"
        elif self.kind == "decode" and self.rows == 1:
            size = f"{self.slots}"
        return f"{self.kind}_{size}_{self.context}"

    @property
    def looked_at(self) -> int:
        """Rows of its logits."""
        return self.slots * (1 if self.kind == "prefill" else self.rows)

    @property
    def data(self) -> tuple[str, ...]:
        """The names of what it takes beside weights and caches."""
        counts = ("counts",) if self.kind == "prefill" else ()
        return ("tokens", "starts", *counts)

    def caches(self, layers: int) -> list[str]:
        """The names of the caches, in order."""
        return [
            f"cache.{slot}.{layer}.{part}"
            for slot in range(self.slots)
            for layer in range(layers)
            for part in "kv"
        ]


def cache_place(name: str) -> tuple[int, str]:
    """The slot of the call that a cache is of, and its name in the slot.

    >>> cache_place("cache.2.11.k")
    (2, '11.k')
    """
    _, slot, inside = name.split(".", 2)
    return int(slot), inside
