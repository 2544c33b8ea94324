"""The fixpoint of pcp-propagate-sharding: layouts grow along the factors of ops."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from pcp.dialect.base import text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.mesh import Mesh
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.walk import CONTROL_FLOW
from pcp.passes.sharding.annotations import annotations
from pcp.passes.sharding.factors import (
    REPLICATE,
    WINDOW,
    Assignment,
    Dim,
    Dims,
    FactorRule,
    project,
)
from pcp.passes.sharding.flow import FlowGraph, FlowNode
from pcp.passes.sharding.halo import Exchange
from pcp.passes.sharding.layout import Annotation, Axes, Layout
from pcp.passes.sharding.ways import OpWork, Tensor, bytes_sent

_MAPS = ELEMENTWISE | {
    "func.return",
    "stablehlo.case",
    "stablehlo.if",
    "stablehlo.optimization_barrier",
    "stablehlo.reshape",
    "stablehlo.transpose",
    "stablehlo.while",
}
_BROADCASTS = ("stablehlo.broadcast_in_dim",)

#: (may change operands, may change results)
Directions = tuple[bool, bool]
BOTH, BACKWARDS, NEITHER = (True, True), (True, False), (False, False)


def _maps_only(name: str) -> Directions:
    return BOTH if name in _MAPS or name.startswith("pcp.") else NEITHER


def _no_broadcasts(name: str) -> Directions:
    return BACKWARDS if name in _BROADCASTS else BOTH


@dataclass(frozen=True)
class PropagationRound:
    """What may be done at an op, by its name.

    Where two factors claim an axis neither gets it, but in a round that `settles`
    such claims by what they cost.
    """

    directions: Callable[[str], Directions]
    settles: bool = False


ROUNDS = (
    PropagationRound(_maps_only),
    PropagationRound(_no_broadcasts),
    PropagationRound(lambda name: BOTH),
    PropagationRound(lambda name: BOTH, settles=True),
)

_BARRIERS = {"fwd": (False, True), "bwd": (True, False), "none": NEITHER}


@dataclass
class _Tensor:
    """The state of one value."""

    dims: list[Axes]
    closed: list[bool]
    priority: list[int]
    kept_whole: Axes = ()
    unreduced: Axes = ()
    why: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, rank: int) -> "_Tensor":
        return cls([()] * rank, [False] * rank, [0] * rank)

    @classmethod
    def annotated(cls, said: Annotation) -> "_Tensor":
        """As a user has it."""
        dims, closed = list(said.layout.dims), list(said.closed)
        priority, unreduced = list(said.priority), said.layout.unreduced
        return cls(dims, closed, priority, said.replicated, unreduced)

    def used(self) -> set[str]:
        """Axes that can cut nothing more."""
        cut = {axis for dim in self.dims for axis in dim}
        return cut | set(self.kept_whole) | set(self.unreduced)

    def layout(self) -> Layout:
        return Layout(tuple(self.dims), self.unreduced)


class Propagation:
    """The layouts of one function's values, growing."""

    def __init__(self, mesh: Mesh, function: ir.Operation) -> None:
        self.mesh = mesh
        self.function = function
        self.graph = FlowGraph.read(function)
        self.tensors = [_Tensor.open(len(shape)) for shape in self.graph.shapes]
        self.annotated: set[int] = set()
        self.users: list[list[int]] = [[] for _ in self.tensors]
        for i, node in enumerate(self.graph.nodes):
            for value in set(node.values):
                self.users[value].append(i)
        for number, annotation in annotations(function, self.graph, mesh):
            self.tensors[number] = _Tensor.annotated(annotation)
            self.annotated.add(number)
        self._apply_constraints()

    def _apply_constraints(self) -> None:
        """What is computed for a constraint alone is computed as that says."""
        for node in self.graph.nodes:
            if node.op.name == "pcp.constraint":
                given, result = node.values
                said = self.tensors[result]
                if given not in self.annotated and _is_computed_for(node.op):
                    self.tensors[given] = replace(said, why=[], dims=list(said.dims))

    def run(self) -> None:
        """Carry what is annotated everywhere, the user's priorities in turn."""
        priorities = sorted({p for t in self.tensors for p in t.priority} | {0})
        for priority in priorities:
            for one in ROUNDS:
                self._fixpoint(priority, one)

    def spread(self, value: int, dim: int, axis: str) -> list[int]:
        """Cut one open tensor and carry that on; every value that came to be cut."""
        self.tensors[value].dims[dim] = (axis,)
        cut = [value]
        for one in ROUNDS:
            waiting = [user for v in cut for user in self.users[v]]
            heapify(waiting)
            while waiting:
                node = self.graph.nodes[heappop(waiting)]
                for changed in self._visit(node, 0, one):
                    cut.append(changed)
                    for user in self.users[changed]:
                        heappush(waiting, user)
        return list(dict.fromkeys(cut))

    def _fixpoint(self, priority: int, one: PropagationRound) -> None:
        """Visit nodes in program order until none has anything to say."""
        nodes = self.graph.nodes
        allowed = [self._directions(node, one) != NEITHER for node in nodes]
        waiting = [i for i, allow in enumerate(allowed) if allow]
        queued = set(waiting)
        while waiting:
            i = heappop(waiting)
            queued.discard(i)
            for value in self._visit(nodes[i], priority, one):
                for user in self.users[value]:
                    if user not in queued and allowed[user]:
                        queued.add(user)
                        heappush(waiting, user)

    def _directions(self, node: FlowNode, one: PropagationRound) -> Directions:
        if node.op.name == "pcp.barrier_prop":
            return _BARRIERS[text(node.op, "direction")]
        if node.op.name == "pcp.reshard":
            return NEITHER
        return one.directions(node.op.name)

    def _visit(self, node: FlowNode, priority: int, one: PropagationRound) -> list[int]:
        """Carry the agreed axes of each factor on; the values that changed."""
        allow = self._directions(node, one)
        if allow == NEITHER:
            return []
        agreed, read = self._agreed(node, priority, one.settles)
        if not agreed and not read:
            return []
        # Windows hand on forwards only: an operand that is whole has every halo.
        backwards = {f: a for f, a in read.items() if node.rule.kinds[f] != WINDOW}
        changed = []
        for place, (dims, value) in enumerate(
            zip(node.rule.tensors, node.values, strict=True)
        ):
            is_operand = place < node.operands
            may = allow[0] if is_operand else allow[1]
            if (may or node.is_tie) and self._extend(
                node, dims, value, backwards if is_operand else agreed, priority
            ):
                changed.append(value)
        return changed

    def _agreed(
        self, node: FlowNode, priority: int, settles: bool
    ) -> tuple[Assignment, Assignment]:
        """For each factor the longest list of axes that nobody contradicts.

        For results, and for operands: of these it may be more, as they are read.
        """
        said: dict[int, list[Axes]] = {}
        for dims, value in zip(node.rule.tensors, node.values, strict=True):
            tensor = self.tensors[value]
            if not any(tensor.dims):
                continue
            speaking = tuple(
                axes if p <= priority else ()
                for axes, p in zip(tensor.dims, tensor.priority, strict=True)
            )
            found, _ = project(node.rule, dims, Layout(speaking), self.mesh)
            for factor, axes in found.items():
                said.setdefault(factor, []).append(axes)
        if not said:
            return {}, {}
        agreed = {
            factor: _longest_agreed(lists)
            for factor, lists in said.items()
            if node.rule.kinds[factor] != REPLICATE
        }
        agreed = {f: a for f, a in agreed.items() if self._carries(node.rule, f, a)}
        agreed = {f: a for f, a in agreed.items() if a}
        contested = _contested(agreed)
        disputed = {f for f, lists in said.items() if len(set(lists)) > 1}
        if not settles or not (contested or disputed):
            kept = _without(contested, agreed, {})
            return kept, kept
        way, pays = self._settled(node)
        kept = _without(contested, agreed, way if pays else {})
        return kept, _without(contested, agreed, way) | _longer(way, agreed)

    def _settled(self, node: FlowNode) -> tuple[Assignment, bool]:
        """How to cut the op, and whether it pays that open results are cut along.

        It does if members send less than with results as they are: what comes after
        is not known, and reads whole tensors at no cost.
        """
        settled, left = self._work(node, open_=True), self._work(node, open_=False)
        along, apart = settled.cheapest(), left.cheapest()
        pays = settled.bytes(along) < left.bytes(apart)
        return (along if pays else apart), pays

    def _work(self, node: FlowNode, *, open_: bool) -> OpWork:
        """The op as its tensors lie now; their open dimensions as such, or closed."""
        tensors = [
            Tensor(
                self.tensors[value].layout(),
                self.graph.shapes[value],
                self.graph.widths[value],
                tuple(open_ and not closed for closed in self.tensors[value].closed),
                value,
            )
            for value in node.values
        ]
        return OpWork(node.rule, tensors, self.mesh, bytes_sent(self.mesh))

    def _carries(self, rule: FactorRule, factor: int, axes: Axes) -> bool:
        """Whether what neighbours have to send is little: a halo, not a shuffle."""
        return all(
            reach.step > 0
            and Exchange.of(reach, rule.sizes[factor], axes, self.mesh, axes).is_narrow
            for reach in rule.reaches
            if reach.factor == factor and axes
        )

    def _extend(
        self, node: FlowNode, dims: Dims, value: int, agreed: Assignment, priority: int
    ) -> bool:
        """Cut the value's open dimensions further; whether any was."""
        tensor = self.tensors[value]
        changed = False
        for d, dim in enumerate(dims):
            if tensor.closed[d] or tensor.priority[d] > priority:
                continue
            wanted = self._wanted(node, dim, agreed)
            own = len(tensor.dims[d])
            if len(wanted) <= own or wanted[:own] != tensor.dims[d]:
                continue
            used = tensor.used()
            new = list(tensor.dims[d])
            size = self.graph.shapes[value][d]
            for axis in wanted[own:]:
                if axis in used or not self.mesh.fills(size, [*new, axis]):
                    break
                new.append(axis)
            if len(new) > own:
                tensor.dims[d] = tuple(new)
                tensor.why.append(self._reason(node, d, dim, new[own:]))
                changed = True
        return changed

    def _wanted(self, node: FlowNode, dim: Dim, agreed: Assignment) -> Axes:
        """The axes of a dimension by its factors, as far as they can be said."""
        if len(dim) == 1:
            return agreed.get(dim[0], ())
        rule = node.rule
        whole = 1
        for factor in dim:
            whole *= rule.sizes[factor]
        axes: Axes = ()
        for factor in dim:
            own = agreed.get(factor, ())
            cut = self._following(rule.sizes[factor], whole, axes, own)
            axes += cut
            if cut != own or self.mesh.count(own) != rule.sizes[factor]:
                break
        return axes

    def _following(self, size: int, whole: int, above: Axes, own: Axes) -> Axes:
        """As many axes as cut the factor and the dimension at the same places."""
        kept: Axes = ()
        for axis in own:
            more = (*kept, axis)
            scale = whole // max(1, self.mesh.count(above)) // max(1, size)
            wanted = [n * scale for n in self.mesh.parts(size, more)]
            wanted *= self.mesh.count(above)
            if self.mesh.parts(whole, (*above, *more)) != wanted:
                break
            kept = more
        return kept

    def _reason(self, node: FlowNode, d: int, dim: Dim, axes: Sequence[str]) -> str:
        what = "returned" if node.op.name == "func.return" else node.op.name
        cut = ", ".join(axes)
        halo = ", with a halo" if node.rule.reaches_into(dim) else ""
        return f"dim {d} by {cut}: {what} at {location_string(node.op.location)}{halo}"


def _is_computed_for(constraint: ir.Operation) -> bool:
    """Whether the operand is computed, and read by the constraint alone."""
    value = constraint.operands[0]
    if isinstance(value, ir.BlockArgument) or sum(1 for _ in value.uses) > 1:
        return False
    name = value.owner.name
    return name not in CONTROL_FLOW and not name.startswith("pcp.")


def _longest_agreed(lists: Sequence[Axes]) -> Axes:
    """The longest list if all others begin it, else what they all begin with."""
    longest = max(lists, key=len)
    length = len(longest)
    for axes in lists:
        common = 0
        while common < len(axes) and axes[common] == longest[common]:
            common += 1
        if common < len(axes):
            length = min(length, common)
    return longest[:length]


def _contested(agreed: Assignment) -> set[str]:
    """The axes that two factors claim."""
    claims = Counter(axis for axes in agreed.values() for axis in axes)
    return {axis for axis, count in claims.items() if count > 1}


def _longer(way: Assignment, agreed: Assignment) -> Assignment:
    """The factors that are cut further than their tensors agree on."""
    return {
        f: axes
        for f, axes in way.items()
        if len(axes) > len(own := agreed.get(f, ())) and axes[: len(own)] == own
    }


def _without(contested: set[str], agreed: Assignment, won: Assignment) -> Assignment:
    """Each factor's axes before the first contested one that it has not won."""
    kept: Assignment = {}
    for factor, axes in agreed.items():
        lost = contested.difference(won.get(factor, ()))
        end = next((i for i, axis in enumerate(axes) if axis in lost), len(axes))
        if end:
            kept[factor] = axes[:end]
    return kept
