"""Ways to cut an op's work along axes, what each costs, and the cheapest.

A way gives axes to the op's factors. Its price is what a member sends to get from the
layouts at hand to those that the way asks for, and from what the op leaves to what is
wanted, plus the work that remains for a member, weighed as `FLOPS_PER_BYTE` says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from pcp.layout import Axes, Layout
from pcp.mesh import Mesh
from pcp.passes.sharding import resharding
from pcp.passes.sharding.factors import (
    REPLICATE,
    Assignment,
    FactorRule,
    assemble,
    expressible,
    operand_layouts,
    project,
)
from pcp.passes.sharding.halo import halo_cost

#: How much work a byte on the wire is worth, about that of a CPU on a fast network.
FLOPS_PER_BYTE = 100.0

#: More ways than this to cut one op are not tried.
MOST_WAYS = 256

#: Bytes that a member sends to change a layout: (old, new, shape, element's bytes).
PriceOf = Callable[[Layout, Layout, tuple[int, ...], int], float]


@dataclass(frozen=True)
class Tensor:
    """An operand or result: how it lies or is meant to, its shape, an element's bytes.

    A result's `open` dimensions take further axes gladly; the others are as they are.
    """

    layout: Layout
    shape: tuple[int, ...]
    width: int
    open: tuple[bool, ...] = ()
    #: The same for operands that are one value, which is moved once.
    value: int | None = None

    def wanted(self, made: Layout) -> Layout:
        """How a result should lie that an op leaves like `made`."""
        if not any(self.open):
            return self.layout
        dims = list(self.layout.dims)
        for d, axes in enumerate(made.dims):
            more = axes[len(dims[d]) :]
            taken = {axis for dim in dims for axis in dim}
            if self.open[d] and axes[: len(dims[d])] == dims[d]:
                dims[d] += more if taken.isdisjoint(more) else ()
        return Layout(tuple(dims), self.layout.unreduced)


@dataclass(frozen=True)
class OpWork:
    """An op that is to be cut; `tensors` are its operands, then its results."""

    rule: FactorRule
    tensors: Sequence[Tensor]
    mesh: Mesh
    price_of: PriceOf

    def cheapest(self) -> Assignment:
        """The cheapest way; of equal ones that which leaves least work."""
        return min(self.ways(), key=self.price)

    def ways(self) -> Iterator[Assignment]:
        """Every combination of what the tensors propose for each factor, or less."""
        proposals: dict[int, set[Axes]] = {}
        for dims, tensor in zip(self.rule.tensors, self.tensors, strict=True):
            found, _ = project(self.rule, dims, tensor.layout, self.mesh)
            for factor, axes in found.items():
                if self.rule.kinds[factor] != REPLICATE:
                    options = proposals.setdefault(factor, {()})
                    options.update(axes[:n] for n in range(1, len(axes) + 1))
        factors = sorted(proposals)
        options = [sorted(proposals[f], key=lambda a: (-len(a), a)) for f in factors]
        if prod(map(len, options)) > MOST_WAYS:
            options = [[o[0], ()] for o in options]
        for choice in product(*options):
            used = [axis for axes in choice for axis in axes]
            if len(set(used)) < len(used):
                continue
            way = {f: axes for f, axes in zip(factors, choice, strict=True) if axes}
            if expressible(self.rule, way, self.mesh):
                yield way

    def price(self, way: Assignment) -> tuple[float, float]:
        """Bytes and weighed work of one way; then the work alone, for a tie."""
        work = 2.0 * prod(
            n / self.mesh.count(way.get(f, ())) for f, n in enumerate(self.rule.sizes)
        )
        return self.bytes(way) + work / FLOPS_PER_BYTE, work

    def bytes(self, way: Assignment) -> float:
        """What a member sends if the op is cut so."""
        count = len(self.rule.operands)
        total, moved = 0.0, set[tuple[int, Layout]]()
        for i, tensor in enumerate(self.tensors[:count]):
            sent, layout = self.operand(i, way)
            if tensor.value is not None:
                sent = 0.0 if (tensor.value, layout) in moved else sent
                moved.add((tensor.value, layout))
            total += sent
        for dims, tensor in zip(self.rule.results, self.tensors[count:], strict=True):
            total += self._result(dims, tensor, way)
        return total

    def _result(self, dims: Sequence, tensor: Tensor, way: Assignment) -> float:
        """Bytes to make of what the op leaves what is wanted."""
        total = 0.0
        kinds = self.rule.reductions(way)
        made = assemble(self.rule, tuple(dims), way, self.mesh)
        for kind, axes in kinds.items():
            if kind != "sum":
                before = Layout(made.dims, axes)
                total += self.price_of(before, made, tensor.shape, tensor.width)
        left = Layout(made.dims, kinds.get("sum", ()))
        wanted = tensor.wanted(made)
        return total + self.price_of(left, wanted, tensor.shape, tensor.width)

    def operand(self, i: int, way: Assignment) -> tuple[float, Layout]:
        """The cheapest layout of an operand for a way, with what it costs in bytes.

        Where the op reaches over the borders of parts, their owners send what lies
        there; or the dimension is held whole.
        """
        tensor = self.tensors[i]

        def price(layout: Layout) -> tuple[float, int]:
            sent, messages = halo_cost(
                self.rule, i, way, layout, tensor.shape, self.mesh
            )
            moved = self.price_of(tensor.layout, layout, tensor.shape, tensor.width)
            return tensor.width * sent + moved, messages + (layout != tensor.layout)

        options = operand_layouts(self.rule, i, way, self.mesh)
        best = min(options, key=price)
        return price(best)[0], best


def bytes_sent(mesh: Mesh) -> PriceOf:
    """What changing a layout costs between the members of a mesh."""

    def price(old: Layout, new: Layout, shape: tuple[int, ...], width: int) -> float:
        return resharding.cost(old, new, shape, width, mesh)

    return price
