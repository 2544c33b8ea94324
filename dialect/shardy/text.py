"""Shardy's attributes as text: what a sharding says of each dimension."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(r'\s*("[^"]*"|[\[\]{}<>?=,@():#]|[\w.]+)')


@dataclass
class _Reader:
    """The tokens of one or more shardings, and where it stands."""

    tokens: list[str]
    place: int = 0

    @classmethod
    def of(cls, text: str) -> "_Reader":
        return cls(_TOKEN.findall(text))

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if not token or (wanted and token not in wanted):
            expected = " or ".join(wanted) or "something"
            raise ValueError(f"{expected} expected, not {token or 'the end'!r}")
        self.place += 1
        return token

    def sharding(self) -> "Parsed":
        """`<@mesh, [dims], replicated={..}, unreduced={..}>`."""
        self.take("<")
        if self.peek() != "@":
            raise ValueError("the mesh is written inside the sharding; name it")
        self.take("@")
        parsed = Parsed(self.take().strip('"'))
        self.take(",")
        self.take("[")
        while self.peek() != "]":
            parsed.dims.append(self._dim())
            if self.peek() == ",":
                self.take()
        self.take("]")
        while self.peek() == ",":
            self.take()
            which = self.take("replicated", "unreduced")
            self.take("=")
            axes, _ = self._axes()
            setattr(parsed, which, axes)
        self.take(">")
        return parsed

    def _dim(self) -> "ParsedDim":
        axes, is_open = self._axes()
        priority = 0
        if re.fullmatch(r"p\d+", self.peek()):
            priority = int(self.take()[1:])
        return ParsedDim(axes, not is_open, priority)

    def _axes(self) -> tuple[list[str], bool]:
        """`{"a", "b", ?}`: the axes, and whether it is open."""
        self.take("{")
        axes, is_open = [], False
        while (token := self.take()) != "}":
            if token == "?":
                is_open = True
            elif token.startswith('"'):
                axes.append(token.strip('"'))
            elif token != ",":
                raise ValueError(f"an axis expected, not {token}")
            if self.peek() == ":":
                axes[-1] += self._part()
        return axes, is_open

    def _part(self) -> str:
        """`:(2)4` behind an axis: the part of size 4 that lies inside of 2."""
        self.take(":")
        self.take("(")
        before = self.take()
        self.take(")")
        return f":({before}){self.take()}"


@dataclass(frozen=True)
class ParsedDim:
    """The axes of one dimension."""

    axes: list[str]
    closed: bool
    priority: int

    def __str__(self) -> str:
        listed = _listed(self.axes)
        if self.closed and not self.priority:
            return listed
        return f"#pcp.dim<{listed}, {int(self.closed)}, {self.priority}>"


@dataclass
class Parsed:
    """One sharding."""

    mesh: str
    dims: list[ParsedDim] = field(default_factory=list)
    replicated: list[str] = field(default_factory=list)
    unreduced: list[str] = field(default_factory=list)

    @property
    def says_something(self) -> bool:
        """False where every dimension is open and nothing else is said."""
        cut = any(d.axes or d.closed for d in self.dims)
        return cut or bool(self.replicated or self.unreduced)

    def along(self, axes: Collection[str]) -> "Parsed":
        """What it says of these axes alone; a dimension takes no others."""
        dims = [
            ParsedDim([a for a in dim.axes if a in axes], True, dim.priority)
            for dim in self.dims
        ]
        rest = (
            [a for a in of if a in axes] for of in (self.replicated, self.unreduced)
        )
        return Parsed(self.mesh, dims, *rest)

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.dims))
        rest = f"{_listed(self.replicated)}, {_listed(self.unreduced)}"
        return f"#pcp.sharding<@{self.mesh}, [{dims}], {rest}>"


def _listed(axes: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{axis}"' for axis in axes) + "]"


def read_sharding(text: str) -> Parsed:
    """`#sdy.sharding<...>`; `ValueError` says what is wrong with it."""
    return _Reader.of(text.strip().removeprefix("#sdy.sharding")).sharding()


def read_shardings(text: str) -> list[Parsed]:
    """`#sdy.sharding_per_value<[<...>, <...>]>`."""
    reader = _Reader.of(text.strip().removeprefix("#sdy.sharding_per_value"))
    found = []
    reader.take("<")
    reader.take("[")
    while reader.peek() != "]":
        found.append(reader.sharding())
        if reader.peek() == ",":
            reader.take()
    return found


def rule_text(text: str) -> str:
    """`#sdy.op_sharding_rule<...>` without its frame: a factor rule as pcp has it."""
    return text.strip().removeprefix("#sdy.op_sharding_rule<").removesuffix(">")
