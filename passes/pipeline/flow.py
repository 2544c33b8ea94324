"""What depends on what in a gradient function that is run in microbatches.

Ops are of four kinds. *Fixed* ones depend on no example: on parameters alone, or on
data alone that all microbatches have alike. They are made again wherever a value of
theirs is read. *Tail* ones need a sum over all microbatches. A *settle* is the
`pcp.reshard` that makes this sum. All others are *main*: they run once for each
microbatch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pcp.dialect.bindings import ir
from pcp.passes.core.functions import ROLE, argument_attributes, string
from pcp.passes.core.rewriting import is_pure
from pcp.passes.core.walk import block_of, returned
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.ports import port_shardings

Value = ir.Value

#: The axis of the mesh whose members are microbatches.
AXIS = "microbatch"

#: The role of an argument that has the data of all microbatches.
WHOLE = "whole"

#: Roles of what is given to every stage that reads it; all others are parameters.
GIVEN = ("data", WHOLE)

FIXED, MAIN, SETTLE, TAIL = "fixed", "main", "settle", "tail"


def reads(op: ir.Operation) -> Iterator[Value]:
    """What an op reads, in its regions too, from outside of itself."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            yield from _free(block, set(block.arguments))


def _free(block: ir.Block, known: set[Value]) -> Iterator[Value]:
    for view in block.operations:
        op = view.operation
        yield from (v for v in reads(op) if v not in known)
        known.update(op.results)


def settles(op: ir.Operation, partial: set[Value]) -> bool:
    """Whether the op sums a value over the microbatches."""
    return op.name == "pcp.reshard" and op.operands[0] in partial


def _is_common(op: ir.Operation) -> bool:
    """Whether a reshard gives the same in every microbatch: not each its own part."""
    if op.name != "pcp.reshard":
        return False
    layout = from_attribute(op.attributes["sharding"])
    return AXIS not in (*layout.axes, *layout.unreduced)


@dataclass
class Flow:
    """The ops of one function's body in order, by number, and their readers."""

    function: ir.Operation
    partial: set[Value]
    ops: list[ir.Operation] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    reads: list[list[Value]] = field(default_factory=list)
    makers: dict[Value, int] = field(default_factory=dict)
    readers: dict[Value, list[int]] = field(default_factory=dict)
    _roots: dict[Value, frozenset[Value]] = field(default_factory=dict)

    @classmethod
    def read(cls, function: ir.Operation, partial: set[Value]) -> "Flow":
        """`partial` are the values that are a part of a sum over microbatches."""
        flow = cls(function, partial)
        *ops, _ = block_of(function, 0).operations  # the last one returns
        for view in ops:
            flow._add(view.operation)
        flow._roots.clear()  # kinds may still change: see `once`
        return flow

    @property
    def arguments(self) -> list[Value]:
        """The function's."""
        return list(block_of(self.function, 0).arguments)

    @property
    def results(self) -> list[Value]:
        """What the function returns."""
        return list(returned(block_of(self.function, 0)).operands)

    @cached_property
    def data(self) -> set[Value]:
        """The arguments that are data of the microbatch, or of no example."""
        return self._of_roles("data")

    @cached_property
    def cut(self) -> set[Value]:
        """The arguments of which each microbatch has a part."""
        shardings = port_shardings(self.function, "arg_attrs", len(self.arguments))
        return {
            argument
            for argument, said in zip(self.arguments, shardings, strict=True)
            if said is not None and AXIS in from_attribute(said).axes
        }

    @cached_property
    def given(self) -> set[Value]:
        """The arguments that are no parameters."""
        return self._of_roles(*GIVEN)

    def _of_roles(self, *roles: str) -> set[Value]:
        attributes = argument_attributes(self.function)
        return {
            argument
            for argument, said in zip(self.arguments, attributes, strict=True)
            if string(said, ROLE) in roles
        }

    def _add(self, op: ir.Operation) -> None:
        number = len(self.ops)
        values = list(dict.fromkeys(reads(op)))
        self.kinds.append(self._kind(op, values))
        self.ops.append(op)
        self.reads.append(values)
        for value in values:
            self.readers.setdefault(value, []).append(number)
        self.makers.update((result, number) for result in op.results)

    def _kind(self, op: ir.Operation, values: list[Value]) -> str:
        if settles(op, self.partial):
            return SETTLE
        kinds = {self.kinds[self.makers[v]] for v in values if v in self.makers}
        if kinds & {SETTLE, TAIL}:
            return TAIL
        moves = op.name == "pcp.reshard"
        if MAIN in kinds or self.cut & set(values) or not (moves or is_pure(op)):
            return MAIN
        if not self.partial.isdisjoint(op.results):  # each microbatch adds its own
            return MAIN
        roots = {root for value in values for root in self.roots(value)}
        # What is made of parameters too is an op of the program, on one stage.
        return MAIN if self.data & roots and not roots <= self.given else FIXED

    def kind(self, value: Value) -> str | None:
        """The kind of the op that makes a value; None for an argument."""
        maker = self.makers.get(value)
        return None if maker is None else self.kinds[maker]

    def roots(self, value: Value) -> frozenset[Value]:
        """The arguments, and values that are not made again, behind a fixed value."""
        if self.kind(value) != FIXED:
            return frozenset([value])
        if value not in self._roots:
            found = map(self.roots, self.reads[self.makers[value]])
            self._roots[value] = frozenset().union(*found)
        return self._roots[value]

    def shared(self, values: Iterable[Value]) -> list[Value]:
        """Sums between devices of data alone, in what these fixed values are made of.

        A stage makes each once and not in every task: it is what devices exchange.
        """
        found, seen, waiting = [], set(values), list(values)
        while waiting:
            value = waiting.pop()
            if self.kind(value) != FIXED:
                continue
            number = self.makers[value]
            if _is_common(self.ops[number]) and self._is_given(value):
                found.append(value)
            waiting += set(self.reads[number]) - seen
            seen.update(self.reads[number])
        return sorted(found, key=self.makers.__getitem__)

    def _is_given(self, value: Value) -> bool:
        return bool(roots := self.roots(value)) and roots <= self.given

    def parameters_of(self, number: int) -> set[Value]:
        """The parameters that an op reads, directly or through fixed ops."""
        found = {root for v in self.reads[number] for root in self.roots(v)}
        return {root for root in found if root not in self.makers} - self.given

    def mains(self, number: int) -> list[Value]:
        """The values of main ops that an op reads, through fixed ops too."""
        return [v for v in self.reads[number] if self.kind(v) == MAIN]

    def forward(self) -> list[int]:
        """The main ops behind the first result, in order."""
        wanted, waiting = set(), [self.results[0]]
        while waiting:
            number = self.makers.get(waiting.pop())
            if number is not None and number not in wanted:
                wanted.add(number)
                waiting.extend(self.reads[number])
        return sorted(n for n in wanted if self.kinds[n] == MAIN)
