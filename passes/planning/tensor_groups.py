"""Which parameters are cut together: what one cut of a weight brings with it.

Cut a weight along an output feature, carry that forward through the program, and the
next weight that contracts what came out is cut along its rows, the bias in between
too: Megatron's pairs (Shoeybi et al. 2019, arXiv:1909.08053), found by the same
factor rules that propagation goes by. What equal layers give is one group.

Experts are groups too, cut between matrices that a product has one of for each, and so
is a sequence, the second dimension of data.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.analysis.cost import size_bytes, work
from pcp.passes.analysis.loops import repeats
from pcp.passes.core.functions import NAME, ROLE, argument_attributes, string
from pcp.passes.core.walk import block_of
from pcp.passes.sharding.factors import PASS, Assignment, project
from pcp.passes.sharding.flow import FlowNode
from pcp.passes.sharding.late import MOVES_ONLY
from pcp.passes.sharding.layout import Layout
from pcp.passes.sharding.propagation import Propagation

AXIS, EXPERTS, SEQUENCE = "tp", "ep", "sp"

#: What a sequence divides of a program's work, at least: of others it is no sequence.
MOST_WORK = 0.5

#: By axis and its size the groups that it can cut.
Groups = Mapping[tuple[str, int], Sequence["Group"]]


@dataclass
class Group:
    """Parameters with the dimension each is cut in, and what that changes.

    `work` is the forward work that is divided, as `analysis.cost` weighs it,
    `activations` the stored bytes that are, `reduced` how often a partial sum of so
    many bytes arises. What is in a loop counts in every round.
    """

    cut: dict[str, int] = field(default_factory=dict)
    parameter_bytes: int = 0
    activations: int = 0
    work: float = 0.0
    reduced: Counter[int] = field(default_factory=Counter)
    experts: bool = False

    @property
    def reduced_bytes(self) -> int:
        """Of all partial sums."""
        return sum(bytes_ * count for bytes_, count in self.reduced.items())

    def join(self, other: "Group") -> None:
        """The same of another layer."""
        self.cut |= other.cut
        self.parameter_bytes += other.parameter_bytes
        self.activations += other.activations
        self.work += other.work
        self.reduced += other.reduced
        self.experts |= other.experts

    def __str__(self) -> str:
        """`blocks.*.qkv:1 blocks.*.out:0`, layers joined."""
        found = dict.fromkeys(f"{starred(n)}:{d}" for n, d in self.cut.items())
        return " ".join(found)


def starred(name: str) -> str:
    """`blocks.3.up` as `blocks.*.up`."""
    return re.sub(r"\d+", "*", name)


def find(function: ir.Operation, members: int) -> list[Group]:
    """The groups of a forward function for an axis of so many members.

    Cuts that would cut data too are left out; dimensions too small for the axis stay
    whole.
    """
    finder = _Finder(function, members)
    merged: dict[tuple, list[Group]] = {}
    found: list[Group] = []
    for group, signature in finder.groups():
        alike = merged.setdefault(signature, [])
        # A pair that shares a weight with one before is the other way to pair them.
        apart = (g for g in alike if g.cut.keys().isdisjoint(group.cut))
        if (first := next(apart, None)) is not None:
            first.join(group)
        else:
            alike.append(group)
            found.append(group)
    return found


def by_axis(function: ir.Operation, members: int) -> Groups:
    """The groups of each axis of so many members; no axis without any."""
    weights, sequence = find(function, members), find_sequence(function, members)
    found = {
        AXIS: [group for group in weights if not group.experts],
        EXPERTS: [group for group in weights if group.experts],
        SEQUENCE: [sequence] if sequence else [],
    }
    return {(axis, members): groups for axis, groups in found.items() if groups}


def find_sequence(function: ir.Operation, members: int) -> Group | None:
    """What the second dimension of data divides; None where that is no sequence."""
    finder = _Finder(function, members)
    group = finder.sequence()
    whole = sum(
        repeats(view.operation) * work(view.operation)
        for view in block_of(function, 0).operations
    )
    return group if group and group.work >= MOST_WORK * whole else None


def ranked(groups: Sequence[Group]) -> list[int]:
    """By the work that each divides, less what it sums."""
    return sorted(
        range(len(groups)),
        key=lambda i: 50.0 * groups[i].reduced_bytes - groups[i].work,
    )


def together(groups: Sequence[Group], order: Iterable[int]) -> list[int]:
    """Groups that can be cut at once: in this order, each that the others allow."""
    chosen: list[int] = []
    taken: set[str] = set()
    for i in order:
        if taken.isdisjoint(groups[i].cut):
            taken.update(groups[i].cut)
            chosen.append(i)
    return chosen


class _Finder:
    def __init__(self, function: ir.Operation, members: int) -> None:
        self.mesh = Mesh("m", {AXIS: members})
        self.propagation = Propagation(self.mesh, function)
        self.graph = self.propagation.graph
        self.arguments = list(block_of(function, 0).arguments)
        said = argument_attributes(function)
        self.names = [string(a, NAME) or f"arg{i}" for i, a in enumerate(said)]
        self.roles = [string(a, ROLE) or "data" for a in said]
        self.numbers = {self.graph.index[a]: i for i, a in enumerate(self.arguments)}
        self.values = {number: value for value, number in self.graph.index.items()}

    def groups(self) -> Iterator[tuple[Group, tuple]]:
        """Each weight's cuts in turn, but for those that an earlier one brings."""
        seen: set[tuple[int, int]] = set()
        for i, argument in enumerate(self.arguments):
            if self.roles[i] != "param":
                continue
            for d, n in enumerate(ir.RankedTensorType(argument.type).shape):
                if (i, d) in seen or n < self.mesh.count((AXIS,)):
                    continue
                values = self.propagation.spread(self.graph.index[argument], d, AXIS)
                cut = self._arguments_cut(values)
                seen.update(cut.items())
                if all(self.roles[j] == "param" for j in cut):
                    yield self._group(cut, values), self._signature(cut)
                self._forget(values)

    def sequence(self) -> Group | None:
        """Data's second dimension, if all that have one are long enough."""
        values: list[int] = []
        for argument, role in zip(self.arguments, self.roles, strict=True):
            shape = ir.RankedTensorType(argument.type).shape
            number = self.graph.index[argument]
            if role != "data" or len(shape) < 2 or number in values:
                continue
            if shape[1] < self.mesh.count((AXIS,)):
                return None
            values += self.propagation.spread(number, 1, AXIS)
        return self._group({}, list(dict.fromkeys(values))) if values else None

    def _arguments_cut(self, values: list[int]) -> dict[int, int]:
        tensors = self.propagation.tensors
        return {
            self.numbers[v]: tensors[v].dims.index((AXIS,))
            for v in values
            if v in self.numbers
        }

    def _forget(self, values: list[int]) -> None:
        for value in values:
            tensor = self.propagation.tensors[value]
            tensor.dims = [()] * len(tensor.dims)
            tensor.why.clear()

    def _signature(self, cut: dict[int, int]) -> tuple:
        """Equal for equal layers."""
        return tuple(
            sorted(
                (starred(self.names[i]), tuple(self._shape(i)), d)
                for i, d in cut.items()
            )
        )

    def _shape(self, i: int) -> list[int]:
        return ir.RankedTensorType(self.arguments[i].type).shape

    def _group(self, cut: dict[int, int], values: list[int]) -> Group:
        group = Group({self.names[i]: d for i, d in cut.items()})
        group.parameter_bytes = sum(size_bytes(self.arguments[i]) for i in cut)
        nodes = {n for v in values for n in self.propagation.users[v]}
        for number in sorted(nodes):
            node = self.graph.nodes[number]
            if not node.is_tie:
                self._count(node, group)
        for v in values:
            if v in self.values and v not in self.numbers:
                value = self.values[v]
                group.activations += _times(value) * size_bytes(value)
        return group

    def _count(self, node: FlowNode, group: Group) -> None:
        """What the cut divides at one op, and the partial sums it leaves."""
        assignment: Assignment = {}
        for dims, value in zip(node.rule.tensors, node.values, strict=True):
            layout = Layout(tuple(self.propagation.tensors[value].dims))
            assignment |= project(node.rule, dims, layout, self.mesh)[0]
        if assignment:
            group.work += repeats(node.op) * work(node.op)
            group.experts |= self._multiplies_each(node, assignment)
        if any(node.rule.kinds[f] != PASS for f in assignment):
            bytes_ = sum(size_bytes(r) for r in node.op.results)
            group.reduced[bytes_] += repeats(node.op)

    def _multiplies_each(self, node: FlowNode, assignment: Assignment) -> bool:
        """Whether a product has a matrix of a parameter for each part that is cut."""
        if node.op.name != "stablehlo.dot_general":
            return False
        each = (
            node.rule.kinds[f] == PASS
            and all(any(f in dim for dim in dims) for dims in node.rule.operands)
            for f in assignment
        )
        return any(each) and any(map(self._is_weight, node.op.operands))

    def _is_weight(self, value: ir.Value) -> bool:
        """Whether a value is a parameter, or one with its elements in another order."""
        while not isinstance(value.owner, ir.Block) and value.owner.name in MOVES_ONLY:
            value = value.owner.operands[0]
        return value in self.arguments and (
            self.roles[self.arguments.index(value)] == "param"
        )


def chosen(
    groups: Groups, tp: tuple[int, Sequence[int]], ep: int, sp: int
) -> Iterator[tuple[str, int, Group]]:
    """(axis, its size, group) of each that is cut: of "tp" the numbered ones."""
    size, numbers = tp
    for i in numbers:
        yield AXIS, size, groups[AXIS, size][i]
    for axis, size in ((EXPERTS, ep), (SEQUENCE, sp)):
        for group in groups.get((axis, size), ()):
            yield axis, size, group


def _times(value: ir.Value) -> int:
    """How often a value is made."""
    owner = value.owner
    return 0 if isinstance(owner, ir.Block) else repeats(owner.operation)
