"""pcp-propagate-sharding: from a few annotated tensors to a layout for each one.

The algorithm is Shardy's in its main lines. Dimensions of operands and results hang
together by factors (`sharding.rules`). At an op, the axes that its tensors agree on
for a factor are carried to every open dimension of that factor; this is repeated,
growing only, until nothing changes. It is done first through ops that only move or
map elements, then through the others, then forwards through broadcasts too, so that
the best-founded layouts come first; and for each of the user's priorities in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from pcp.dialect.base import text
from pcp.dialect.bindings import ir
from pcp.dialect.context import location_string
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes.base import CppPasses, Pass
from pcp.passes.elementwise import ELEMENTWISE
from pcp.passes.rewriting import functions, refuse
from pcp.passes.sharding.factors import (
    REPLICATE,
    WINDOW,
    Assignment,
    Dim,
    Dims,
    Rule,
    project,
)
from pcp.passes.sharding.flow import Graph, Node, block_of, walk
from pcp.passes.sharding.halo import Exchange
from pcp.passes.sharding.layout import (
    SHARDING,
    Annotation,
    Axes,
    Layout,
    to_attribute,
)
from pcp.passes.sharding.mesh import read_meshes

WHY = "pcp.why"


@dataclass(frozen=True)
class PropagateSharding(Pass):
    """Give every tensor a layout that follows from the annotated ones.

    Annotations are `pcp.sharding` on arguments and results of functions and
    `pcp.constraint` on values. A dimension written as a list of axes is closed: it
    stays as it is; `#pcp.dim<[..], 0, p>` is open, and speaks only from priority p
    on. Calls are inlined. Leaves `pcp.sharding` on every argument, result and op;
    annotated ones as they were. Idempotent. With `explain=true` each op says in
    `pcp.why` from where every axis of its results came.

    Before:

        func.func @f(%x: tensor<8x16xf32> {pcp.sharding =
            #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<16x4xf32>) {
          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]

    After:

          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              {pcp.sharding = [#pcp.sharding<@m, [["dp"], []], [], []>]}
    """

    name = "pcp-propagate-sharding"
    explain: bool = False

    def run(self, module: ir.Module) -> None:
        """Annotate every function of the module."""
        with module.context:
            inline_calls(module)
            mesh = only_mesh(module)
            for function in functions(module):
                Propagation(mesh, function).run(self.explain)


def inline_calls(module: ir.Module) -> None:
    """Inline every call: layouts of a callee would differ from call to call."""
    called = any(
        op.name == "func.call"
        for function in functions(module)
        for op in walk(block_of(function, 0))
    )
    if called:
        CppPasses("inline,symbol-dce").run(module)


def only_mesh(module: ir.Module) -> Mesh:
    """The module's mesh; a program lies on one."""
    meshes = read_meshes(module)
    if len(meshes) != 1:
        found = ", ".join(f"@{name}" for name in meshes) or "none"
        raise PassError(
            f"{location_string(module.operation.location)}: a program is spread over "
            f"exactly one pcp.mesh; this module has {found}"
        )
    return next(iter(meshes.values()))


# --- the fixpoint ---

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


#: What each round may do at an op, by its name.
ROUNDS = (_maps_only, _no_broadcasts, lambda name: BOTH)

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

    def used(self) -> set[str]:
        """Axes that can cut nothing more."""
        cut = {axis for dim in self.dims for axis in dim}
        return cut | set(self.kept_whole) | set(self.unreduced)

    def layout(self) -> Layout:
        return Layout(tuple(self.dims), self.unreduced)


class Propagation:
    """One function."""

    def __init__(self, mesh: Mesh, function: ir.Operation) -> None:
        self.mesh = mesh
        self.function = function
        self.graph = Graph.read(function)
        self.tensors = [_Tensor.open(len(shape)) for shape in self.graph.shapes]
        self.users: list[list[int]] = [[] for _ in self.tensors]
        for i, node in enumerate(self.graph.nodes):
            for value in set(node.values):
                self.users[value].append(i)
        self._annotate()

    # --- annotations ---

    def _annotate(self) -> None:
        arguments = block_of(self.function, 0).arguments
        given = port_shardings(self.function, "arg_attrs", len(arguments))
        for i, (argument, sharding) in enumerate(zip(arguments, given, strict=True)):
            if sharding is not None:
                number = self.graph.index[argument]
                self._seed(number, sharding, self.function, f"argument {i}: ")
        results = port_shardings(self.function, "res_attrs", len(self.graph.results))
        ends = zip(self.graph.results, results, strict=True)
        for i, (number, sharding) in enumerate(ends):
            if sharding is not None:
                self._seed(number, sharding, self.function, f"result {i}: ")
        for op in walk(block_of(self.function, 0)):
            if op.name in ("pcp.constraint", "pcp.reshard"):
                number = self.graph.index[op.results[0]]
                self._seed(number, op.attributes["sharding"], op)
            elif SHARDING in op.attributes:
                self._seed_results(op)

    def _seed_results(self, op: ir.Operation) -> None:
        """What an earlier run, or a user, wrote on an op."""
        shardings = list(ir.ArrayAttr(op.attributes[SHARDING]))
        if len(shardings) != len(op.results):
            refuse(op, f"{SHARDING} has {len(shardings)} entries for its results")
        for result, sharding in zip(op.results, shardings, strict=True):
            if (number := self.graph.number(result)) is not None:
                self._seed(number, sharding, op)

    def _seed(
        self, number: int, sharding: ir.Attribute, op: ir.Operation, port: str = ""
    ) -> None:
        annotation = Annotation.read(sharding)
        self._check(annotation, self.graph.shapes[number], op, port)
        self.tensors[number] = _Tensor(
            list(annotation.layout.dims),
            list(annotation.closed),
            list(annotation.priority),
            annotation.replicated,
            annotation.layout.unreduced,
        )

    def _check(
        self,
        annotation: Annotation,
        shape: tuple[int, ...],
        op: ir.Operation,
        port: str,
    ) -> None:
        """Raise at an annotation that no tensor can have."""
        layout = annotation.layout
        where = f"{location_string(op.location)}: {op.name}: {port}".removesuffix(": ")
        axes = [*layout.axes, *layout.unreduced, *annotation.replicated]
        if annotation.mesh != self.mesh.name:
            known = f"the program's mesh is @{self.mesh.name}"
            raise PassError(f"{where}: a sharding names @{annotation.mesh}; {known}")
        if len(layout.dims) != len(shape):
            raise PassError(
                f"{where}: the sharding {layout} has {len(layout.dims)} dims for a "
                f"tensor of rank {len(shape)}"
            )
        for axis in axes:
            if axis not in self.mesh.axes:
                known = ", ".join(self.mesh.axes)
                raise PassError(
                    f'{where}: the sharding {layout} names axis "{axis}", which mesh '
                    f"@{self.mesh.name} has not (axes: {known})."
                    + nearest(axis, self.mesh.axes)
                )
            if axes.count(axis) > 1:
                raise PassError(f'{where}: the sharding {layout} uses "{axis}" twice')
        for d, (n, cut) in enumerate(zip(shape, layout.dims, strict=True)):
            if cut and self.mesh.count(cut) > n:
                raise PassError(
                    f"{where}: dimension {d} of {n} cannot be cut into "
                    f"{self.mesh.count(cut)} parts along {', '.join(cut)}; leave it "
                    "whole or use a smaller axis"
                )

    # --- rounds ---

    def run(self, explain: bool) -> None:
        """Propagate and write the layouts down."""
        priorities = sorted({p for t in self.tensors for p in t.priority} | {0})
        for priority in priorities:
            for directions in ROUNDS:
                self._fixpoint(priority, directions)
        self._write(explain)

    def spread(self, value: int, dim: int, axis: str) -> list[int]:
        """Cut one open tensor and carry that on; every value that came to be cut."""
        self.tensors[value].dims[dim] = (axis,)
        cut = [value]
        for directions in ROUNDS:
            waiting = [user for v in cut for user in self.users[v]]
            heapify(waiting)
            while waiting:
                node = self.graph.nodes[heappop(waiting)]
                allow = self._directions(node, directions)
                for changed in self._visit(node, 0, allow) if allow != NEITHER else ():
                    cut.append(changed)
                    for user in self.users[changed]:
                        heappush(waiting, user)
        return list(dict.fromkeys(cut))

    def _fixpoint(self, priority: int, directions) -> None:
        """Visit nodes in program order until none has anything to say."""
        allowed = [self._directions(node, directions) for node in self.graph.nodes]
        waiting = [i for i, allow in enumerate(allowed) if allow != NEITHER]
        heapify(waiting)
        queued = set(waiting)
        while waiting:
            i = heappop(waiting)
            queued.discard(i)
            for value in self._visit(self.graph.nodes[i], priority, allowed[i]):
                for user in self.users[value]:
                    if user not in queued and allowed[user] != NEITHER:
                        queued.add(user)
                        heappush(waiting, user)

    def _directions(self, node: Node, directions) -> Directions:
        if node.op.name == "pcp.barrier_prop":
            return _BARRIERS[text(node.op, "direction")]
        if node.op.name == "pcp.reshard":
            return NEITHER
        return directions(node.op.name)

    def _visit(self, node: Node, priority: int, allow: Directions) -> list[int]:
        """Carry the agreed axes of each factor on; the values that changed."""
        agreed = self._agreed(node, priority)
        if not agreed:
            return []
        # Windows hand on forwards only: an operand that is whole has every halo.
        backwards = {f: a for f, a in agreed.items() if node.rule.kinds[f] != WINDOW}
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

    def _agreed(self, node: Node, priority: int) -> Assignment:
        """For each factor the longest list of axes that nobody contradicts."""
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
        agreed = {
            factor: _longest_agreed(lists)
            for factor, lists in said.items()
            if node.rule.kinds[factor] != REPLICATE
        }
        agreed = {f: a for f, a in agreed.items() if self._carries(node.rule, f, a)}
        return _without_contested({f: a for f, a in agreed.items() if a})

    def _carries(self, rule: Rule, factor: int, axes: Axes) -> bool:
        """Whether what neighbours have to send is little: a halo, not a shuffle."""
        return all(
            reach.step > 0
            and Exchange.of(reach, rule.sizes[factor], axes, self.mesh, axes).is_narrow
            for reach in rule.reaches
            if reach.factor == factor and axes
        )

    def _extend(
        self, node: Node, dims: Dims, value: int, agreed: Assignment, priority: int
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
                if axis in used or self.mesh.count([*new, axis]) > size:
                    break
                new.append(axis)
            if len(new) > own:
                tensor.dims[d] = tuple(new)
                tensor.why.append(self._reason(node, d, dim, new[own:]))
                changed = True
        return changed

    def _wanted(self, node: Node, dim: Dim, agreed: Assignment) -> Axes:
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

    def _reason(self, node: Node, d: int, dim: Dim, axes: Sequence[str]) -> str:
        what = "returned" if node.op.name == "func.return" else node.op.name
        cut = ", ".join(axes)
        halo = ", with a halo" if node.rule.reaches_into(dim) else ""
        return f"dim {d} by {cut}: {what} at {location_string(node.op.location)}{halo}"

    # --- the answer ---

    def _write(self, explain: bool) -> None:
        arguments = block_of(self.function, 0).arguments
        numbers = [self.graph.index[a] for a in arguments]
        self._write_ports("arg_attrs", numbers)
        self._write_ports("res_attrs", self.graph.results)
        for op in walk(block_of(self.function, 0)):
            if not len(op.results) or op.name in ("pcp.constraint", "pcp.reshard"):
                continue
            if any(r not in self.graph.index for r in op.results):
                continue
            found = [self.graph.index[r] for r in op.results]
            op.attributes[SHARDING] = ir.ArrayAttr.get(
                [to_attribute(self._layout(n), self.mesh.name) for n in found]
            )
            why = [reason for n in found for reason in self.tensors[n].why]
            if explain and why:
                op.attributes[WHY] = ir.ArrayAttr.get(
                    [ir.StringAttr.get(reason) for reason in why]
                )

    def _layout(self, number: int) -> Layout:
        return self.tensors[number].layout()

    def _write_ports(self, which: str, numbers: Sequence[int]) -> None:
        new = [to_attribute(self._layout(n), self.mesh.name) for n in numbers]
        set_port_shardings(self.function, which, new)


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


def _without_contested(agreed: Assignment) -> Assignment:
    """An axis that two factors claim goes to neither here: cost decides later."""
    claims: dict[str, int] = {}
    for axes in agreed.values():
        for axis in axes:
            claims[axis] = claims.get(axis, 0) + 1
    kept: Assignment = {}
    for factor, axes in agreed.items():
        free = next((i for i, a in enumerate(axes) if claims[a] > 1), len(axes))
        if free:
            kept[factor] = axes[:free]
    return kept


# --- attributes of a function's ports ---


def port_shardings(
    function: ir.Operation, which: str, count: int
) -> list[ir.Attribute | None]:
    """`pcp.sharding` of each argument (`arg_attrs`) or result (`res_attrs`)."""
    if which not in function.attributes:
        return [None] * count
    entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[which])]
    return [entry[SHARDING] if SHARDING in entry else None for entry in entries]


def set_port_shardings(
    function: ir.Operation, which: str, shardings: Sequence[ir.Attribute | None]
) -> None:
    """Set `pcp.sharding` of every port that has one, other attributes kept."""
    old = (
        [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[which])]
        if which in function.attributes
        else [ir.DictAttr.get({})] * len(shardings)
    )
    entries = [
        ir.DictAttr.get(
            {named.name: named.attr for named in entry}
            | ({} if new is None else {SHARDING: new})
        )
        for entry, new in zip(old, shardings, strict=True)
    ]
    function.attributes[which] = ir.ArrayAttr.get(entries)
