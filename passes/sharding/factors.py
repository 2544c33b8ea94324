"""Factor rules: how the dimensions of an op's operands and results hang together.

A rule names *factors*, sizes that iterate through the op's work, and says of which
factors each dimension of each tensor is made, major to minor. `x[i,k] · w[k,j]` has
factors i, j (in an operand and the result) and k (in the operands only, summed). An
axis of the mesh that cuts a factor cuts every dimension made of it, and the op runs
on the parts as it stands. This is the formulation of Shardy ("op sharding rule").

A window factor cuts the result and an operand of another size (a convolution's
input): what a part of it needs is said by a `Reach`, and comes from the neighbours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from pcp.layout import Axes, Layout
from pcp.mesh import Mesh

#: What an axis on a factor means, besides the names of reductions.
PASS = "pass"
REPLICATE = "replicate"
WINDOW = "window"
REDUCTIONS = ("sum", "max", "min", "prod")

Dim = tuple[int, ...]
Dims = tuple[Dim, ...]

#: The axes that cut each factor; factors without an entry are whole.
Assignment = dict[int, Axes]

#: From an element to behind another one.
Span = tuple[int, int]


@dataclass(frozen=True)
class Reach:
    """Which elements along one dimension of an operand a factor's elements need.

    Element j of the factor needs every operand element i with

        low + step * j <= base * i <= low + step * j + extent

    `size` is the operand's own; the dimension is made of the factor alone.
    """

    factor: int
    operand: int
    dim: int
    size: int
    step: int = 1
    low: int = 0
    extent: int = 0
    base: int = 1

    def covered(self, part: Span) -> Span:
        """The first and the last place, on the scale of `base * i`, of a part."""
        ends = [self.low + self.step * j for j in (part[0], part[1] - 1)]
        return min(ends), max(ends) + self.extent

    def needed(self, part: Span) -> Span:
        """The operand's elements that a part needs; (0, 0) where there are none."""
        if part[0] >= part[1]:
            return 0, 0
        first, last = self.covered(part)
        start = max(0, -(-first // self.base))
        stop = min(self.size, last // self.base + 1)
        return (start, stop) if start < stop else (0, 0)

    def margins(self, part: Span) -> Span:
        """How far a part looks beyond what it needs: padding, low and high."""
        first, last = self.covered(part)
        start, stop = self.needed(part)
        if start == stop:
            return last - first + 1, 0
        return start * self.base - first, last - (stop - 1) * self.base


@dataclass(frozen=True)
class FactorRule:
    """Factors with sizes and kinds, and every tensor's dimensions made of them."""

    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reaches: tuple[Reach, ...] = ()

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

    def reaches_into(self, dim: Dim) -> bool:
        """Whether parts of a dimension need something of their neighbours."""
        return any(dim == (reach.factor,) for reach in self.reaches)


@dataclass
class Rules:
    """Writes a rule: `factor(n)` makes one, `FactorRule` comes from `done`."""

    sizes: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    reaches: list[Reach] = field(default_factory=list)

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
    ) -> FactorRule:
        """The rule of these tensors."""
        return FactorRule(
            tuple(self.sizes),
            tuple(self.kinds),
            tuple(map(tuple, operands)),
            tuple(map(tuple, results)),
            tuple(self.reaches),
        )


def project(
    rule: FactorRule, dims: Dims, layout: Layout, mesh: Mesh
) -> tuple[Assignment, bool]:
    """A tensor's axes by factor, and whether all of them found one.

    In a dimension of several factors the major one takes axes while its parts are the
    dimension's too (`_follows`); a minor one can be cut only when every factor above
    it is cut into single elements, since otherwise its parts do not lie together.
    """
    found: Assignment = {}
    complete = True
    for dim, axes in zip(dims, layout.dims, strict=True):
        if len(dim) == 1:
            if axes:
                found[dim[0]] = axes
            continue
        sizes = [rule.sizes[factor] for factor in dim]
        done = 0
        for i, factor in enumerate(dim):
            end = done
            while end < len(axes) and _follows(sizes, i, axes[: end + 1], done, mesh):
                end += 1
            if end > done:
                found[factor] = axes[done:end]
            if mesh.count(axes[done:end]) != sizes[i]:
                done = end
                break
            done = end
        complete = complete and done == len(axes)
    return found, complete


def _follows(sizes: Sequence[int], i: int, axes: Axes, done: int, mesh: Mesh) -> bool:
    """Whether a dimension cut along `axes` is cut where its factor `i` is.

    The factors above are cut into single elements by the axes before `done`; the
    rest cut factor `i`, whose parts, times what lies inside, must be the dimension's.
    """
    outer, inner = prod(sizes[:i]), prod(sizes[i + 1 :])
    own = axes[done:]
    if mesh.count(own) > sizes[i]:
        return False
    wanted = [part * inner for part in mesh.parts(sizes[i], own)] * outer
    return mesh.parts(prod(sizes), axes) == wanted


def assemble(
    rule: FactorRule, dims: Dims, assignment: Assignment, mesh: Mesh
) -> Layout:
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


def operand_layouts(
    rule: FactorRule, operand: int, assignment: Assignment, mesh: Mesh
) -> list[Layout]:
    """How an operand may lie when the work is cut so: as it is cut, first.

    Along a dimension that is reached into it may be whole as well: then every member
    takes what it needs of it.
    """
    found = [assemble(rule, rule.operands[operand], assignment, mesh)]
    for reach in rule.reaches:
        if reach.operand == operand and assignment.get(reach.factor):
            found += [_whole_along(layout, reach.dim) for layout in found]
    return found


def _whole_along(layout: Layout, dim: int) -> Layout:
    return Layout((*layout.dims[:dim], (), *layout.dims[dim + 1 :]))


def expressible(rule: FactorRule, assignment: Assignment, mesh: Mesh) -> bool:
    """Whether every tensor can lie so, with the parts of a factor at one place.

    Parts of a factor in a dimension of several must be the parts of the dimension
    too; the factors above it must be cut into single elements.
    """
    for reach in rule.reaches:
        cut = assignment.get(reach.factor, ())
        if cut and not mesh.fills(reach.size, cut):
            return False
    for dims in rule.tensors:
        for dim in dims:
            if not _dim_expressible(rule, dim, assignment, mesh):
                return False
    return True


def _dim_expressible(
    rule: FactorRule, dim: Dim, assignment: Assignment, mesh: Mesh
) -> bool:
    if len(dim) == 1:
        cut = assignment.get(dim[0], ())
        return not cut or mesh.fills(rule.sizes[dim[0]], cut)
    sizes = [rule.sizes[factor] for factor in dim]
    axes: Axes = ()
    above_single = True
    for i, factor in enumerate(dim):
        own = assignment.get(factor, ())
        if own and not (
            above_single and _follows(sizes, i, axes + own, len(axes), mesh)
        ):
            return False
        axes += own
        above_single = above_single and mesh.count(own) == sizes[i]
    return True
