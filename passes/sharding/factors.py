"""Factor rules: how the dimensions of an op's operands and results hang together.

A rule names *factors*, sizes that iterate through the op's work, and says of which
factors each dimension of each tensor is made, major to minor. `x[i,k] · w[k,j]` has
factors i, j (in an operand and the result) and k (in the operands only, summed). An
axis of the mesh that cuts a factor cuts every dimension made of it, and the op runs
on the parts as it stands. This is the formulation of Shardy ("op sharding rule").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pcp.layout import Axes, Layout
from pcp.mesh import Mesh

#: What an axis on a factor means, besides the names of reductions.
PASS = "pass"
REPLICATE = "replicate"
REDUCTIONS = ("sum", "max", "min", "prod")

Dim = tuple[int, ...]
Dims = tuple[Dim, ...]

#: The axes that cut each factor; factors without an entry are whole.
Assignment = dict[int, Axes]


@dataclass(frozen=True)
class Rule:
    """Factors with sizes and kinds, and every tensor's dimensions made of them."""

    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    @property
    def tensors(self) -> tuple[Dims, ...]:
        """The operands, then the results."""
        return self.operands + self.results

    def reductions(self, assignment: Assignment) -> dict[str, Axes]:
        """The axes over which the results are partial, by kind of reduction."""
        found: dict[str, Axes] = {}
        for factor, axes in sorted(assignment.items()):
            kind = self.kinds[factor]
            if axes and kind in REDUCTIONS:
                found[kind] = found.get(kind, ()) + axes
        return found


@dataclass
class Rules:
    """Writes a rule: `factor(n)` makes one, `Rule` comes from `done`."""

    sizes: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def factor(self, size: int, kind: str = PASS) -> int:
        """A new factor."""
        self.sizes.append(size)
        self.kinds.append(kind)
        return len(self.sizes) - 1

    def dims(self, shape: Sequence[int], kind: str = PASS) -> list[Dim]:
        """A new factor for each dimension."""
        return [(self.factor(n, kind),) for n in shape]

    def done(
        self, operands: Iterable[Sequence[Dim]], results: Iterable[Sequence[Dim]]
    ) -> Rule:
        """The rule of these tensors."""
        return Rule(
            tuple(self.sizes),
            tuple(self.kinds),
            tuple(map(tuple, operands)),
            tuple(map(tuple, results)),
        )


def project(
    rule: Rule, dims: Dims, layout: Layout, mesh: Mesh
) -> tuple[Assignment, bool]:
    """A tensor's axes by factor, and whether all of them found one.

    In a dimension of several factors the major one takes axes while they divide it;
    a minor one can be cut only when every factor above it is cut into single
    elements, since otherwise its parts do not lie together.
    """
    found: Assignment = {}
    complete = True
    for dim, axes in zip(dims, layout.dims, strict=True):
        if len(dim) == 1:
            if axes:
                found[dim[0]] = axes
            continue
        rest = list(axes)
        for factor in dim:
            taken, parts = (), 1
            size = rule.sizes[factor]
            while rest and size % (parts * mesh.axes[rest[0]]) == 0:
                parts *= mesh.axes[rest[0]]
                taken += (rest.pop(0),)
            if taken:
                found[factor] = taken
            if parts != size:
                break
        complete = complete and not rest
    return found, complete


def assemble(rule: Rule, dims: Dims, assignment: Assignment, mesh: Mesh) -> Layout:
    """The layout of a tensor whose factors are cut so; what cannot be said is left."""
    laid: list[Axes] = []
    for dim in dims:
        axes: Axes = ()
        for factor in dim:
            own = assignment.get(factor, ())
            axes += own
            if mesh.count(own) != rule.sizes[factor]:
                break
        laid.append(axes)
    return Layout(tuple(laid))


def expressible(rule: Rule, assignment: Assignment, mesh: Mesh) -> bool:
    """Whether every tensor can lie so, with the parts of a factor at one place.

    Parts of a factor in a dimension of several must be equal, and be the parts of
    the dimension too; the factors above it must be cut into single elements.
    """
    for dims in rule.tensors:
        for dim in dims:
            if not _dim_expressible(rule, dim, assignment, mesh):
                return False
    return True


def _dim_expressible(rule: Rule, dim: Dim, assignment: Assignment, mesh: Mesh) -> bool:
    whole = 1
    for factor in dim:
        whole *= rule.sizes[factor]
    axes: Axes = ()
    above_single = True
    inner = whole
    for factor in dim:
        own = assignment.get(factor, ())
        size = rule.sizes[factor]
        inner //= max(size, 1)
        if own and not above_single:
            return False
        if own and mesh.count(own) > size:
            return False
        axes += own
        if own and len(dim) > 1:
            # The dimension's own cut must follow the factor's.
            outer = whole // max(size * inner, 1)
            wanted = [part * inner for part in mesh.parts(size, own)] * outer
            if mesh.parts(whole, axes) != wanted:
                return False
        above_single = above_single and mesh.count(own) == size
    return True
