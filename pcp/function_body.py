"""What makes a function's results, where that is not one function of a module.

A manifest says it: the results are first values of a seed, or parts make them in turn.
"""

from collections.abc import Iterator, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pcp import initializer
from pcp.errors import ConfigError

MAX_DIMENSIONS = 64

#: Rows of one tensor that are values of their own.
MAX_VALUES = 1 << 20

#: Of everything in a manifest: immutable, and no key that this version does not know.
FROZEN = ConfigDict(frozen=True, extra="forbid")


class First(BaseModel):
    """How a tensor begins: by an initializer, or as `@inner_init` of the bundle says.

    `stream` tells the random numbers of one tensor from another's. A part of a tensor
    of the shape `whole` lies at `start`.
    """

    model_config = FROZEN

    init: str
    stream: int = Field(default=0, ge=0, lt=1 << 32)
    whole: tuple[int, ...] = Field(default=(), max_length=MAX_DIMENSIONS)
    start: tuple[int, ...] = Field(default=(), max_length=MAX_DIMENSIONS)

    @model_validator(mode="after")
    def _check_init(self) -> Self:
        if self.init != initializer.FROM_PARAMETERS:
            try:
                drawn = initializer.parse(self.init)
            except ConfigError as error:
                raise ValueError(str(error)) from error
            if drawn.of:
                raise ValueError(f"{self.init} is nothing that a seed makes")
        return self

    @property
    def from_parameters(self) -> bool:
        """Whether `@inner_init` makes it of the parameters."""
        return self.init == initializer.FROM_PARAMETERS

    def holds(self, shape: Sequence[int]) -> bool:
        """Whether a part of this shape lies inside of the whole."""
        ends = len(shape) == len(self.whole) == len(self.start)
        return ends and all(
            0 <= start and start + size <= whole
            for size, whole, start in zip(shape, self.whole, self.start, strict=True)
        )


class Part(BaseModel):
    """One of the functions of a module that together do what another says.

    Its `inputs` are numbers of values: the arguments of the whole in their order, then
    what the parts give, the first part's results first. Several numbers are one tensor
    for the part: those values, of one type, one under the other. So with `rows`, for
    each result: how many values are its rows, or 0 where it is one value.
    """

    model_config = FROZEN

    name: str
    inputs: tuple[int | tuple[int, ...], ...]
    results: int = Field(ge=0)
    rows: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.rows and len(self.rows) != self.results:
            raise ValueError(
                f"{self.name}: {len(self.rows)} numbers of rows for {self.results} "
                "results"
            )
        if any(rows < 0 or rows > MAX_VALUES for rows in self.rows):
            raise ValueError(f"{self.name}: so many rows has no result")
        if any(not number for number in self.inputs if isinstance(number, tuple)):
            raise ValueError(f"{self.name}: a stack of no values")
        return self

    @property
    def numbers(self) -> Iterator[int]:
        """The values that it takes, each by itself."""
        for number in self.inputs:
            yield from number if isinstance(number, tuple) else (number,)

    @property
    def made(self) -> int:
        """How many values it gives."""
        return sum(max(1, n) for n in self.rows) if self.rows else self.results
