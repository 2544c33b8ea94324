"""Components: which of a function's values are made together, and which apart."""

from collections import Counter
from collections.abc import Iterable

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting, stacks
from pcp.passes.core.elementwise import ELEMENTWISE

Values = list[ir.Value]

#: Made again in each component that reads it.
_SPREAD = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "convert")
)
_FILLED = frozenset(("stablehlo.constant", "stablehlo.iota"))

#: Of arguments, these are outside of a part (`pcp-stack-arguments`).
_STACKED = frozenset((stacks.CONCATENATE, stacks.RESHAPE, "stablehlo.slice"))


class Body:
    """A function's ops by number, and which of its values are made together.

    `components` fills in what they share: `shared` scalars, in order.
    """

    def __init__(self, function: ir.Operation) -> None:
        block = functions.entry(function)
        *self.ops, self.end = [view.operation for view in block.operations]
        self.roots = list(self.end.operands)
        self.places: dict[ir.Value, list[int]] = {}
        """Of each returned value: which results it is."""
        for place, root in enumerate(self.roots):
            self.places.setdefault(root, []).append(place)
        self.makers = {v: i for i, op in enumerate(self.ops) for v in op.results}
        self.reads = [[*op.operands, *rewriting.captures(op)] for op in self.ops]
        self.attributes = dict(
            zip(block.arguments, functions.argument_attributes(function), strict=True)
        )
        self.shared: dict[ir.Value, None] = {}
        self.readers: Counter[ir.Value] = Counter()
        """How many components read a value."""

    def components(self) -> list[Values]:
        """The returned values that are made together, each once.

        None of them where the function is not to be split: it does more than compute,
        or what is neither cheap nor elementwise would be computed twice.
        """
        if not all(map(rewriting.is_pure, self.ops)):
            return []
        readers: list[list[int]] = [[] for _ in self.ops]
        for number, read in enumerate(self.reads):
            for value in read:
                if value in self.makers:
                    readers[self.makers[value]].append(number)
        returned = set(self.roots)
        groups = _Groups(len(self.ops))
        needed: list[set[int]] = [set() for _ in self.ops]  # by which groups
        early = [False] * len(self.ops)  # whether a shared scalar is made of it
        for number in reversed(range(len(self.ops))):
            op = self.ops[number]
            scalar = all(map(_is_scalar, op.results))
            root = any(value in returned for value in op.results)
            for reader in readers[number]:
                early[number] |= early[reader]
                needed[number] |= needed[reader]
            found = {groups.of(group) for group in needed[number]}
            if not root and self._is_cheap(number):
                continue
            if scalar and (root or len(found) > 1 or (found and early[number])):
                early[number], needed[number] = True, set()
                self.shared |= dict.fromkeys(op.results)
            elif root or found:
                if early[number] and op.name not in ELEMENTWISE:
                    return []
                groups.join(number, found)
                needed[number] = {number}
        self.shared = dict.fromkeys(reversed(self.shared))
        by_group: dict[int, Values] = {}
        for root in dict.fromkeys(self.roots):
            if root in self.makers and root not in self.shared:
                group = groups.of(self.makers[root])
                by_group.setdefault(group, []).append(root)
        for component in by_group.values():
            self.readers.update(self.closure(component)[1])
        return list(by_group.values())

    def _is_cheap(self, number: int) -> bool:
        """Whether each reader makes it for itself.

        So it does with what fills, or spreads a scalar, or stacks arguments.
        """
        op = self.ops[number]
        if op.name in _FILLED:
            return True
        if op.name in _STACKED and all(
            v not in self.makers or self._is_cheap(self.makers[v]) for v in op.operands
        ):
            return True
        return op.name in _SPREAD and all(
            _is_scalar(v) or (v in self.makers and self._is_cheap(self.makers[v]))
            for v in op.operands
        )

    def closure(self, roots: Values) -> tuple[list[int], Values]:
        """The ops that make these, in order, and what they read of others.

        That is arguments, and of components what is shared.
        """
        outer = {} if roots[0] in self.shared else self.shared
        wanted, seen, ops = [*roots], set(roots), set[int]()
        while wanted:
            value = wanted.pop()
            number = self.makers.get(value)
            if number is None or number in ops or value in outer:
                continue
            ops.add(number)
            fresh = [operand for operand in self.reads[number] if operand not in seen]
            seen.update(fresh)
            wanted += fresh
        order = sorted(ops)
        inside = {value for number in order for value in self.ops[number].results}
        read = [value for number in order for value in self.reads[number]]
        return order, list(dict.fromkeys(v for v in read if v not in inside))


def _is_scalar(value: ir.Value) -> bool:
    return hlo.shape_of(value) == ()


class _Groups:
    """Numbers, each in one group; a group is known by one of its numbers."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def of(self, number: int) -> int:
        """The group's number."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, number: int, others: Iterable[int]) -> None:
        """Make one group of the number's and the others'."""
        for other in others:
            self._parent[self.of(other)] = self.of(number)
