"""Which members may hold other bits of what they all compute, and who is right then.

A value that an axis does not cut is computed by every member along it. Where these run
code for unlike targets, it *differs* along the axis as soon as something in front of it
rounds, until a collective gives all of them the same bits again, or each takes a part
of its own. Two kinds of such values must not differ: what a function returns, which the
next step takes for the same everywhere, and decisions (see `rounding`). They get one
owner: the first member along the axes, by a `pcp.broadcast`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pcp.dialect.base import strings
from pcp.dialect.bindings import ir
from pcp.dialect.collectives import broadcast
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import HOLD, before
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned
from pcp.passes.sharding.layout import SHARDING, Layout, to_attribute
from pcp.passes.sharding.manual import TO_PART, is_manual
from pcp.passes.sharding.plan import ShardingPlan
from pcp.passes.sharding.rounding import decisions, rounds

#: Collectives after which the members along their axes hold the same.
AGREE = ("pcp.all_reduce", "pcp.all_gather", "pcp.broadcast")

Axes = frozenset[str]
_NONE: Axes = frozenset()


def give_owners(function: ir.Operation, mesh: Mesh) -> int:
    """Broadcast what must not differ in a function that was resharded; how often."""
    if not mesh.unlike & set(mesh.axes):
        return 0
    return _Owners(mesh, ShardingPlan.read(function, mesh).layouts).function(function)


@dataclass
class _Owners:
    """Follows a function; `differs` has the axes along which a value may differ."""

    mesh: Mesh
    layouts: dict[ir.Value, Layout]
    differs: dict[ir.Value, Axes] = field(default_factory=dict)
    #: Whether nothing is inserted yet: a loop is followed until its axes are known.
    trial: bool = False
    made: int = 0

    def function(self, function: ir.Operation) -> int:
        """What is given is the same everywhere; what is returned has to be."""
        entry = block_of(function, 0)
        self._block(entry)
        for value in dict.fromkeys(returned(entry).operands):
            if self._axes([value]):
                self._own(value)
        return self.made

    def _axes(self, values: Iterable[ir.Value]) -> Axes:
        return _NONE.union(*(self.differs.get(v, _NONE) for v in values))

    def _block(self, block: ir.Block) -> list[Axes]:
        """The axes along which differs what the block hands on."""
        *ops, end = [view.operation for view in block.operations]
        for op in ops:
            if op.name == "stablehlo.while":
                self._loop(op)
            elif op.name in CONTROL_FLOW:
                self._branches(op)
            else:
                self._compute(op)
        return [self._axes([value]) for value in end.operands]

    def _compute(self, op: ir.Operation) -> None:
        found = self._axes(op.operands)
        if rounds(op):
            found |= self.mesh.unlike & set(self.mesh.axes)
        if op.name in AGREE:
            found -= set(strings(op, "axes"))
        for number, result in enumerate(op.results):
            layout = self.layouts[result]
            if op.name == HOLD:  # each result is its operand
                found = self._axes([op.operands[number]])
            self.differs[result] = found - {*layout.axes, *layout.unreduced}
        if is_manual(op) or op.name == TO_PART:
            return  # members' own values, not copies of one
        for result in decisions(op):
            if self.differs[result]:
                self._decide(result)

    def _decide(self, value: ir.Value) -> None:
        if self.trial:
            self.differs[value] = _NONE  # as it will be
        else:
            self._own(value)

    def _own(self, value: ir.Value) -> None:
        """All that reads it gets what the first member along the axes has."""
        axes = [axis for axis in self.mesh.axes if axis in self.differs[value]]
        layout, maker = self.layouts[value], value.owner.operation
        with before(maker):
            new = broadcast(value, mesh=self.mesh.name, axes=axes)
        made = new.owner.operation
        made.attributes[SHARDING] = ir.ArrayAttr.get(
            [to_attribute(layout, self.mesh.name)]
        )
        made.move_after(maker)
        value.replace_all_uses_except(new, made)
        self.layouts[new], self.differs[new] = layout, _NONE
        self.made += 1

    # --- control flow ---

    def _loop(self, op: ir.Operation) -> None:
        """The smallest sets that the first and every later round agree on."""
        carried = [self._axes([value]) for value in op.operands]
        outer, self.trial = self.trial, True
        while (after := self._round(op, carried)) != carried:
            carried = after
        self.trial = outer
        if not outer:
            self._round(op, carried)
        self.differs.update(zip(op.results, carried, strict=True))

    def _round(self, op: ir.Operation, carried: Sequence[Axes]) -> list[Axes]:
        for region in op.regions:
            arguments = region.blocks[0].arguments
            self.differs.update(zip(arguments, carried, strict=True))
        self._block(block_of(op, 0))
        after = self._block(block_of(op, 1))
        return [a | b for a, b in zip(carried, after, strict=True)]

    def _branches(self, op: ir.Operation) -> None:
        found = [self._block(region.blocks[0]) for region in op.regions]
        for result, axes in zip(op.results, zip(*found, strict=True), strict=True):
            self.differs[result] = _NONE.union(*axes)
