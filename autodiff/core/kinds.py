"""The kinds of derivative rule, and what a rule sees.

A rule is an entry of a chapter's `RULES` table (`autodiff/rules/<chapter>.py`):

    "tanh":     Elementwise(lambda g, x, y: ...)   # g·f'(x); y is the result
    "negate":   Linear(lambda at, g: ...)          # one transpose an operand
    "multiply": Bilinear(lhs, rhs)                 # linear in each operand alone
    "reduce":   Vjp(rule)                          # cotangents of all operands
    "map":      Decomposed(expand)                 # other ops first, then theirs
    "floor":    NoGradient("piecewise constant")   # a fact, not an omission
    "send":     Refusal("...; instead ...")        # decided, and the way out

So "zero", "refused" and "unwritten" are three facts: the last is an op that the
table does not have, and each is an error of its own if a derivative meets it.

Conventions (those of JAX). The pairing of cotangent and tangent is Re Σ g·t
without conjugation, so a holomorphic op has the rule of its real counterpart.
A cotangent has the type of its primal. `None` is a cotangent that is zero: no
rule emits a zero tensor for it. Integers and booleans have no cotangent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import MissingRule

Value = ir.Value
Cotangent = Value | None


@dataclass(frozen=True)
class Site:
    """One op on the active path, as its rule sees it.

    `inputs` are the operands, then the values that its regions capture.
    `cotangents` has an entry for each result, at least one of them not None.
    `wanted` says which inputs need a cotangent; a rule may return more, they
    are dropped. `active` holds every active value of the walk, for rules that
    walk regions.
    """

    op: ir.Operation
    inputs: tuple[Value, ...]
    cotangents: tuple[Cotangent, ...]
    wanted: tuple[bool, ...]
    active: dict[Value, str] = field(default_factory=dict)

    @property
    def g(self) -> Value:
        """The cotangent of the only result that can have one."""
        return next(g for g in self.cotangents if g is not None)

    @property
    def y(self) -> Value:
        """The first result."""
        return self.op.results[0]

    def __getitem__(self, index: int) -> Value:
        """An operand."""
        return self.op.operands[index]

    def attribute(self, name: str) -> ir.Attribute | None:
        """An attribute of the op, or None."""
        return hlo.attribute(self.op, name)

    def ints(self, name: str) -> list[int]:
        """An `array<i64>` attribute as a list; absent is empty."""
        found = self.attribute(name)
        return [] if found is None else list(ir.DenseI64ArrayAttr(found))

    def int(self, name: str) -> int:
        """An integer attribute."""
        return ir.IntegerAttr(self.attribute(name)).value

    def refuse(self, why: str) -> MissingRule:
        """The error for a form of the op that has no derivative here."""
        where = location_string(self.op.location)
        return MissingRule(f"{where}: {self.op.name}: {why}")


class Rule(Protocol):
    """What the reverse walk asks of a table entry."""

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """One cotangent for each of `at.inputs`; None is zero."""
        ...


Transpose = Callable[[Site, Value], Value | None]


@dataclass(frozen=True, init=False)
class Linear:
    """The op is linear in its differentiable operands together.

    One transpose for each operand, `(site, g) -> cotangent`; None stands for an
    operand through which no derivative flows (a predicate, an index). A single
    `every` in place of them gives all cotangents of a variadic op at once.
    """

    transposes: tuple[Transpose | None, ...]
    every: Callable[[Site, Value], Sequence[Cotangent]] | None

    def __init__(
        self,
        *transposes: Transpose | None,
        every: Callable[[Site, Value], Sequence[Cotangent]] | None = None,
    ) -> None:
        object.__setattr__(self, "transposes", transposes)
        object.__setattr__(self, "every", every)

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """The transposes of the wanted operands."""
        if self.every is not None:
            return self.every(at, at.g)
        padded = self.transposes + (None,) * (len(at.inputs) - len(self.transposes))
        return [
            transpose(at, at.g) if wanted and transpose else None
            for transpose, wanted in zip(padded, at.wanted, strict=True)
        ]


@dataclass(frozen=True)
class Bilinear:
    """Linear in each of two operands while the other is held."""

    lhs: Transpose
    rhs: Transpose

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """The transposes of the wanted operands."""
        return [
            transpose(at, at.g) if wanted else None
            for transpose, wanted in zip((self.lhs, self.rhs), at.wanted, strict=True)
        ]


@dataclass(frozen=True, init=False)
class Elementwise:
    """Applied element by element: `(g, *operands, result) -> g · ∂f/∂operand`.

    One function for each operand. Each is linear in its first argument, so the
    same one serves a tangent in forward mode.
    """

    derivatives: tuple[Callable[..., Value] | None, ...]

    def __init__(self, *derivatives: Callable[..., Value] | None) -> None:
        object.__setattr__(self, "derivatives", derivatives)

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """g times the derivative, for the wanted operands."""
        return [
            derive(at.g, *at.op.operands, at.y) if wanted and derive else None
            for derive, wanted in zip(self.derivatives, at.wanted, strict=True)
        ]


@dataclass(frozen=True)
class Vjp:
    """Whatever is none of the above: `(site) -> cotangents of all inputs`.

    `forward(op, tangents)` sets the tangents of the results itself; without it
    forward mode transposes the rule (see `forward`). `expand` is as in `Decomposed`,
    for the forms that are better taken apart first.
    """

    rule: Callable[[Site], Sequence[Cotangent]]
    forward: Callable[[ir.Operation, dict[Value, Value]], None] | None = None
    expand: Callable[[ir.Operation], Sequence[Value] | None] | None = None

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """The rule's answer."""
        return self.rule(at)


@dataclass(frozen=True)
class Decomposed:
    """Other ops that compute the same are differentiated in its place.

    `expand(op)` makes them at the insertion point, in front of the op, and returns
    a value for each result; None leaves the op, which is an error for `why` if a
    derivative flows through it. `expansion` does so before any walk.
    """

    expand: Callable[[ir.Operation], Sequence[Value] | None]
    why: str = "this form of it has no derivative rule; write it as other ops"

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """Reached only by a form that was not expanded."""
        raise at.refuse(self.why)


@dataclass(frozen=True)
class Refusal:
    """There is no derivative here by decision: `why`, and what to do instead.

    A `boundary` lets values in or out of the program by another way than its
    arguments and results, so no cotangent arrives of itself: it is an error as soon
    as an active value leaves there, or a cotangent reaches what came in.
    """

    why: str
    boundary: bool = False

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """The error."""
        raise at.refuse(self.why)


@dataclass(frozen=True)
class NoGradient:
    """No derivative flows through the op, and `why` says what makes that true."""

    why: str

    def vjp(self, at: Site) -> Sequence[Cotangent]:
        """None for every input."""
        return [None] * len(at.inputs)
