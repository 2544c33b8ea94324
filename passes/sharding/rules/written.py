"""Factor rules that users write: on a custom call, or for an extension's op.

    ([i, j], [j, k])->([i, k]) {i=8, j=4, k=16} reduction={j}

is Shardy's text. Each tensor lists its dimensions, each of these the factors that it is
made of, major to minor: letters, or letters with a number as `z_1`; `jk` is a dimension
of two. Sizes may be left out where a dimension is of one factor. `...` at the front of
a list stands for any number of dimensions, alike in all tensors. A factor under
`reduction` leaves partial sums; one under `need_replication`, `permutation` or
`blocked_propagation` is not cut, nor is one that no operand has, or no result.

The text stands in the attribute `pcp.sharding_rule` of an op, or is registered for all
ops of a name, of custom calls by `custom_call:<target>`. What it claims is believed: on
parts that are cut so, the op gives the parts of its results.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.passes.core.rewriting import refuse
from pcp.passes.sharding.factors import PASS, REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import is_predicate, shape_of

RULE = "pcp.sharding_rule"

#: A rule's text, or what gives it for an op; None where the op runs whole.
Written = str | Callable[[ir.Operation], str | None]

_KINDS = {
    "reduction": "sum",
    "need_replication": REPLICATE,
    "permutation": REPLICATE,
    "blocked_propagation": REPLICATE,
}
_REST = "..."
_TENSORS = re.compile(r"\(([^()]*)\)\s*->\s*\(([^()]*)\)(.*)", re.DOTALL)
_LISTS = re.compile(r"\s*\[([^\[\]]*)\]\s*(,|$)")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
_CLAUSE = re.compile(r"\s*,?\s*(?:(\w+)\s*=\s*)?\{([^{}]*)\}|\s*,\s*custom\b")

_registered: dict[str, Written] = {}


def register(name: str, rule: Written) -> None:
    """Use a rule for ops of this name; `ConfigError` for a name that has one."""
    if name in _registered:
        raise ConfigError(f"{name} has a sharding rule already")
    _registered[name] = rule


def unregister(name: str) -> None:
    """Forget what `register` added under `name`."""
    _registered.pop(name, None)


def written_rule(op: ir.Operation) -> FactorRule | None:
    """The rule that a user wrote for an op; None without one."""
    text = _text(op)
    if text is None:
        return None
    try:
        return _Reader.of(text).rule(op)
    except ValueError as error:
        refuse(op, f"sharding rule {text!r}: {error}")


def _text(op: ir.Operation) -> str | None:
    if RULE in op.attributes:
        said = op.attributes[RULE]
        if not isinstance(said, ir.StringAttr):
            refuse(op, f'{RULE} is a text, as in "([i])->([i])", not {said}')
        return ir.StringAttr(said).value
    found = _registered.get(_name(op))
    return found(op) if callable(found) else found


def _name(op: ir.Operation) -> str:
    if op.name != "stablehlo.custom_call":
        return op.name
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    return f"custom_call:{target}"


Dims = list[list[str]]


@dataclass
class _Reader:
    """A rule's text: factors by dimension, their sizes, and their kinds."""

    operands: list[Dims]
    results: list[Dims]
    sizes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "_Reader":
        """Read it; `ValueError` says what is wrong."""
        match = _TENSORS.fullmatch(text.strip())
        if match is None:
            raise ValueError("it is written as ([i, j], [j])->([i])")
        reader = cls(_tensors(match[1]), _tensors(match[2]))
        reader._clauses(match[3])
        used = _used(reader._tensors)
        for factor in (*reader.sizes, *reader.kinds):
            if factor not in used:
                raise ValueError(f"no dimension is made of {factor}")
        return reader

    @property
    def _tensors(self) -> list[Dims]:
        return self.operands + self.results

    def _clauses(self, text: str) -> None:
        place = 0
        while text[place:].strip():
            match = _CLAUSE.match(text, place)
            if match is None:
                raise ValueError(f"{text[place:].strip()!r} is not understood")
            place = match.end()
            if match[2] is None:  # `custom`: a user's own rule, as all of these are
                continue
            if match[1] is None:
                self.sizes |= _sizes(match[2])
            elif match[1] in _KINDS:
                factors = [f.strip() for f in match[2].split(",") if f.strip()]
                self.kinds |= dict.fromkeys(factors, _KINDS[match[1]])
            else:
                known = ", ".join(_KINDS)
                raise ValueError(f"{match[1]} is not one of {known}")

    def rule(self, op: ir.Operation) -> FactorRule:
        """The rule for an op's shapes; `ValueError` where they do not fit."""
        shapes = [shape_of(v) for v in (*op.operands, *op.results)]
        for what, said, given in (
            ("operands", self.operands, op.operands),
            ("results", self.results, op.results),
        ):
            if len(said) != len(given):
                raise ValueError(f"it is of {len(said)} {what}, not {len(given)}")
        dims = [
            _expanded(one, len(shape))
            for one, shape in zip(self._tensors, shapes, strict=True)
        ]
        sizes = self._all_sizes(dims, shapes)
        count = len(op.operands)
        kinds = self._all_kinds(dims[:count], dims[count:])
        if any(map(is_predicate, op.results)):  # whose sums no collective forms
            kinds |= {f: REPLICATE for f, kind in kinds.items() if kind == "sum"}
        rules, numbers = Rules(), dict[str, int]()
        for factor, size in sizes.items():
            numbers[factor] = rules.factor(size, kinds[factor])
        made: list[list[Dim]] = [
            [tuple(numbers[f] for f in dim) for dim in tensor] for tensor in dims
        ]
        return rules.done(made[:count], made[count:])

    def _all_kinds(self, operands: Sequence[Dims], results: Sequence[Dims]) -> dict:
        """Every factor's kind; only what operands and results have goes through."""
        read, made = _used(operands), _used(results)
        kinds: dict[str, str] = {}
        for factor in read | made:
            kind = self.kinds.get(factor, PASS)
            if kind == "sum" and factor in made:
                raise ValueError(f"{factor} is reduced, and a result is made of it")
            passes = kind == PASS and factor in read and factor in made
            kinds[factor] = kind if passes or kind == "sum" else REPLICATE
        return kinds

    def _all_sizes(
        self, tensors: Sequence[Dims], shapes: Sequence[tuple[int, ...]]
    ) -> dict[str, int]:
        """Every factor's size, each dimension's the product of its factors'."""
        sizes = dict(self.sizes)
        pairs = [
            pair
            for dims, shape in zip(tensors, shapes, strict=True)
            for pair in zip(dims, shape, strict=True)
        ]
        for dim, n in pairs:
            if len(dim) == 1:
                sizes.setdefault(dim[0], n)
        for dim, n in pairs:
            whole = 1
            for factor in dim:
                if factor not in sizes:
                    raise ValueError(f"the size of {factor} is missing: {{{factor}=8}}")
                whole *= sizes[factor]
            if whole != n:
                raise ValueError(f"{''.join(dim)} is of {whole}, a dimension of {n}")
        return sizes


def _used(tensors: Sequence[Dims]) -> set[str]:
    return {factor for dims in tensors for dim in dims for factor in dim}


def _tensors(text: str) -> list[Dims]:
    found: list[Dims] = []
    place = 0
    while text[place:].strip():
        match = _LISTS.match(text, place)
        if match is None:
            raise ValueError(f"{text[place:].strip()!r} is no list of dimensions")
        place = match.end()
        dims = [d.strip() for d in match[1].split(",") if d.strip()]
        factors = [_factors(i, dim) for i, dim in enumerate(dims)]
        flat = [factor for dim in factors for factor in dim]
        if twice := [factor for factor in flat if flat.count(factor) > 1]:
            raise ValueError(f"{twice[0]} stands twice in one tensor")
        found.append(factors)
    return found


def _factors(place: int, text: str) -> list[str]:
    if text == _REST and place == 0:
        return [_REST]
    factors = _FACTOR.findall(text)
    if "".join(factors) != text:
        raise ValueError(f"{text!r} is no dimension: factors are letters, as i or z_1")
    return factors


def _sizes(text: str) -> Mapping[str, int]:
    sizes = {}
    for part in text.split(","):
        factor, _, size = (piece.strip() for piece in part.partition("="))
        if not _FACTOR.fullmatch(factor) or not size.isdigit():
            raise ValueError(f"{part.strip()!r} is no size, as i=8")
        sizes[factor] = int(size)
    return sizes


def _expanded(dims: Dims, rank: int) -> Dims:
    """The dimensions with as many in place of `...` as the rank asks for.

    They are counted from the last one of them, so that tensors agree.
    """
    if not dims or dims[0] != [_REST]:
        if len(dims) != rank:
            raise ValueError(f"a list of {len(dims)} dimensions is for rank {rank}")
        return dims
    rest = rank - len(dims) + 1
    if rest < 0:
        raise ValueError(f"a list of {len(dims) - 1} dimensions is for rank {rank}")
    return [[f"{_REST}{i}"] for i in reversed(range(rest))] + dims[1:]
