"""pcp-propagate-sharding: from a few annotated tensors to a layout for each one.

The algorithm is Shardy's in its main lines. Dimensions of operands and results hang
together by factors (`sharding.rules`). At an op, the axes that its tensors agree on
for a factor are carried to every open dimension of that factor; this is repeated,
growing only, until nothing changes. It is done first through ops that only move or
map elements, then through the others, then forwards through broadcasts too, so that
the best-founded layouts come first; and for each of the user's priorities in turn.
An axis that two factors of an op claim is settled last, as it costs least bytes.

Rows of 8 that an axis of 4 cuts become 2 x 4: the axis ends inside of the second
dimension, so that only its parts, 2 and 2, cut the result. Then the axis gives way to
these, as Shardy splits axes, and all is done again.

So it is where rows and columns of attention's scores claim one axis, since it cuts the
sequence: then the scores are constrained (`rules.attention`), and all is done again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.layout import Axes
from pcp.mesh import WORKERS
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of, walk
from pcp.passes.sharding import expansions, sub_axes
from pcp.passes.sharding.factors import Dim, FactorRule
from pcp.passes.sharding.flow import GROUP
from pcp.passes.sharding.inline_calls import inline_calls
from pcp.passes.sharding.layout import (
    SHARDING,
    WHY,
    Layout,
    from_attribute,
    to_attribute,
)
from pcp.passes.sharding.mesh import Mesh, only_mesh
from pcp.passes.sharding.ports import set_port_shardings
from pcp.passes.sharding.propagation import Propagation
from pcp.passes.sharding.rules.attention import scores_layout


@dataclass(frozen=True)
class PropagateSharding(Pass):
    """Give every tensor a layout that follows from the annotated ones.

    Annotations are `pcp.sharding` on arguments and results of functions and
    `pcp.constraint` on values. A dimension written as a list of axes is closed: it
    stays as it is; `#pcp.dim<[..], 0, p>` is open, and speaks only from priority p
    on. Calls are inlined, what a callee says of its arguments and results with them,
    and constants are made for each op that reads them. Attention of a sequence that is
    cut is constrained to lie by heads, or by queries. Leaves `pcp.sharding` on every
    argument, result and op; annotated ones as they were. An axis that a reshape takes
    apart gives way to its parts, and meshes over the same devices are one. Idempotent.
    With `explain=true` each op says in `pcp.why` from where every axis of its results
    came.

    Before:

        func.func @f(%x: tensor<8x16xf32> {pcp.sharding =
            #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<16x4xf32>)
            -> tensor<8x4xf32> {
          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
          return %y : tensor<8x4xf32>
        }

    After:

          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              {pcp.sharding = [#pcp.sharding<@m, [["dp"], []], [], []>]}
              : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    """

    name = "pcp-propagate-sharding"
    explain: bool = False

    def run(self, module: ir.Module) -> None:
        """Annotate every function of the module."""
        with module.context:
            inline_calls(module)
            sub_axes.merge_meshes(module)
            sub_axes.refine(module)
            mesh = only_mesh(module)
            for function in functions(module):
                expansions.split(function)
            for found in _propagated(module, mesh):
                _write(found, self.explain)


def _propagated(module: ir.Module, mesh: Mesh) -> list[Propagation]:
    """The layouts of all functions; axes are cut where reshapes take them apart."""
    while True:
        found = [Propagation(mesh, function) for function in functions(module)]
        for each in found:
            each.run()
        cuts: dict[str, set[int]] = {}
        for axis, place in (cut for each in found for cut in cuts_at_reshapes(each)):
            cuts.setdefault(axis, set()).add(place)
        if cuts := _nested(cuts):
            (op,) = sub_axes.meshes_of(module)
            sub_axes.cut_axes(module, op, cuts)
            mesh = only_mesh(module)
        elif not any([_constrain_scores(each) for each in found]):
            return found


def _constrain_scores(found: Propagation) -> bool:
    """Say how attention's scores are to lie where one axis is claimed twice."""
    any_ = False
    for node in found.graph.nodes:
        layouts = [found.tensors[value].layout() for value in node.values]
        if layout := scores_layout(node.op, node.rule, layouts, found.mesh):
            _constrain(node.op, layout, found.mesh)
            any_ = True
    return any_


def _constrain(op: ir.Operation, layout: Layout, mesh: Mesh) -> None:
    """Behind the op its result laid out so, for all that reads it."""
    with ir.InsertionPoint(op), op.location:
        said = ir.Operation.create(
            "pcp.constraint",
            operands=[op.result],
            results=[op.result.type],
            attributes={"sharding": to_attribute(layout, mesh.name)},
        )
    said.move_after(op)
    op.result.replace_all_uses_except(said.result, said)


def _nested(cuts: dict[str, set[int]]) -> dict[str, set[int]]:
    """Of each axis the places that divide each other; a later reshape goes without."""
    kept: dict[str, set[int]] = {}
    for axis, places in cuts.items():
        for place in sorted(places):
            if all(place % other == 0 for other in kept.get(axis, ())):
                kept.setdefault(axis, set()).add(place)
    return kept


def _write(found: Propagation, explain: bool) -> None:
    """Put the layouts on the function's ports and ops."""
    function, graph, name = found.function, found.graph, found.mesh.name

    def attribute(number: int | None) -> ir.Attribute:
        is_token = number is None
        return to_attribute(
            Layout(()) if is_token else found.tensors[number].layout(), name
        )

    entry = block_of(function, 0)
    ports = [graph.index.get(a) for a in entry.arguments], graph.results
    for which, numbers in zip(("arg_attrs", "res_attrs"), ports, strict=True):
        given = [None if n is None else attribute(n) for n in numbers]
        set_port_shardings(function, which, given)
    for op in list(walk(entry)):
        if op.name == GROUP:
            op.erase()
            continue
        if not len(op.results) or op.name == "pcp.reshard":
            continue
        numbers = [graph.index.get(r) for r in op.results]
        if op.name == "pcp.constraint":
            _write_grown(op, attribute(numbers[0]))
            continue
        op.attributes[SHARDING] = ir.ArrayAttr.get(list(map(attribute, numbers)))
        why = [w for n in numbers if n is not None for w in found.tensors[n].why]
        if explain and why:
            reasons = [ir.StringAttr.get(reason) for reason in why]
            op.attributes[WHY] = ir.ArrayAttr.get(reasons)


def _write_grown(constraint: ir.Operation, found: ir.Attribute) -> None:
    """How a constraint's result lies, where open dimensions came to be cut further."""
    asked = from_attribute(constraint.attributes["sharding"])
    if from_attribute(found).dims != asked.dims:
        constraint.attributes[SHARDING] = ir.ArrayAttr.get([found])


# --- axes that a reshape takes apart ---

#: Axes that what comes behind knows by name.
WHOLE = ("pp", "microbatch", WORKERS)

#: An axis, and the place in it at which a part begins.
Cut = tuple[str, int]


def cuts_at_reshapes(found: Propagation) -> Iterator[Cut]:
    """Where axes have to be cut for layouts to pass the reshapes of a function."""
    for node in found.graph.nodes:
        if node.op.name != "stablehlo.reshape":
            continue
        sides = [found.tensors[value] for value in node.values]
        for one, other in ((0, 1), (1, 0)):
            open_ = _open_factors(node.rule.tensors[other], sides[other].closed)
            for dim, axes in zip(node.rule.tensors[one], sides[one].dims, strict=True):
                yield from _cut(node.rule, dim, axes, found.mesh, open_)


def _open_factors(dims: Sequence[Dim], closed: Sequence[bool]) -> set[int]:
    """The factors of dimensions that may be cut further."""
    pairs = zip(dims, closed, strict=True)
    return {factor for dim, shut in pairs if not shut for factor in dim}


def _cut(
    rule: FactorRule, dim: Dim, axes: Axes, mesh: Mesh, open_: set[int]
) -> Iterator[Cut]:
    """The place in the axis with which a dimension leaves one of its factors."""
    room = iter(dim)
    factor, left = next(room, None), 0
    whole = 1
    for each in dim:
        whole *= rule.sizes[each]
    for number, axis in enumerate(axes):
        size = mesh.axes[axis]
        while factor is not None and left == 0:
            left = rule.sizes[factor]
        if factor is None or whole % mesh.count(axes[: number + 1]):
            return
        if left >= size:
            if left % size:
                return
            left //= size
            if left == 1:
                factor, left = next(room, None), 0
            continue
        usable = axis not in WHOLE and axis not in mesh.weights
        if usable and left > 1 and size % left == 0 and factor in open_:
            yield axis, left
        return
