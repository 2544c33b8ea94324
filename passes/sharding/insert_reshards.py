"""pcp-insert-reshards: every op gets operands that lie as it needs them.

Propagation gives each value one layout. Where an op's operands and results do not
fit together, or more than one way of cutting the op's work is at hand, the cheapest
is taken: bytes that a member sends, plus work weighed as `FLOPS_PER_BYTE` says.

Partial sums travel on through ops that are linear in them, so that the sum of three
products is reduced once and not three times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of, element_width, returned
from pcp.passes.sharding import resharding
from pcp.passes.sharding.annotations import check_shardings
from pcp.passes.sharding.factors import (
    Assignment,
    FactorRule,
    assemble,
    expressible,
    project,
)
from pcp.passes.sharding.late import (
    LATE,
    REGATHER,
    Copy,
    Late,
    parameters,
)
from pcp.passes.sharding.layout import (
    SHARDING,
    Layout,
    from_attribute,
    to_attribute,
)
from pcp.passes.sharding.linear import linear_in
from pcp.passes.sharding.mesh import only_mesh
from pcp.passes.sharding.ports import op_shardings, port_shardings
from pcp.passes.sharding.rules import rule_of
from pcp.passes.sharding.ways import OpWork, Tensor

#: Ops without operands, which are made again rather than moved.
SOURCES = ("stablehlo.constant", "stablehlo.iota", "arith.constant")


@dataclass(frozen=True)
class InsertReshards(Pass):
    """Make every change of layout an op: `pcp.reshard`.

    Assumes what pcp-propagate-sharding leaves. After it an op's tensors agree on how
    its work is cut, `pcp.sharding` of each result is how the op leaves it (partial
    sums as `unreduced`), and what has to lie otherwise goes through a `pcp.reshard`.

    Before, with %x cut along its contracted dimension and %y to be whole:

        %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            {pcp.sharding = [#pcp.sharding<@m, [[], []], [], []>]}
            : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

    After:

        %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            {pcp.sharding = [#pcp.sharding<@m, [[], []], [], ["tp"]>]}
            : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        %y = "pcp.reshard"(%p) {sharding = #pcp.sharding<@m, [[], []], [], []>}
            : (tensor<8x4xf32>) -> tensor<8x4xf32>

    With `regather` a parameter that is gathered for its use is gathered again for a
    later one, unless nothing as large was gathered in between: whole copies live as
    long as a layer computes, and a parameter crosses the wire once more for it. Such
    reshards are `late`: pcp-lower-to-runtime starts them when their turn comes.
    pcp-zero{stage=3} asks for it by `pcp.regather` on the module.
    """

    name = "pcp-insert-reshards"
    regather: bool = False

    def run(self, module: ir.Module) -> None:
        """Insert reshards into every function."""
        with module.context:
            mesh = only_mesh(module)
            regather = self.regather or REGATHER in module.operation.attributes
            for function in functions(module):
                check_shardings(function, mesh)
                late = Late(mesh, parameters(function)) if regather else None
                Resharder(mesh, late).function(function)
            if REGATHER in module.operation.attributes:
                del module.operation.attributes[REGATHER]


@dataclass
class Resharder:
    """Walks a function; knows how each value lies where it is now."""

    mesh: Mesh
    late: Late | None = None
    layouts: dict[ir.Value, Layout] = field(default_factory=dict)
    #: Values that are still partial sums, with the layout they are meant to have.
    pending: dict[ir.Value, Layout] = field(default_factory=dict)
    made: dict[Copy, ir.Value] = field(default_factory=dict)
    ways: dict[tuple, Assignment] = field(default_factory=dict)

    def function(self, function: ir.Operation) -> None:
        """Reshard inside `function`; its border lies as it says."""
        entry = block_of(function, 0)
        given = port_shardings(function, "arg_attrs", len(entry.arguments))
        for argument, sharding in zip(entry.arguments, given, strict=True):
            self.layouts[argument] = self._port(argument, sharding, function)
        ends = list(returned(entry).operands)
        said = port_shardings(function, "res_attrs", len(ends))
        wanted = [
            self._port(value, sharding, function)
            for value, sharding in zip(ends, said, strict=True)
        ]
        self._block(entry, wanted)

    def _port(
        self, value: ir.Value, sharding: ir.Attribute | None, function: ir.Operation
    ) -> Layout:
        """How an argument or result lies; what is no tensor, a token, is whole."""
        if not isinstance(value.type, ir.RankedTensorType):
            return Layout(())
        return self._read(sharding, function)

    def _read(self, sharding: ir.Attribute | None, op: ir.Operation) -> Layout:
        if sharding is None:
            raise PassError(
                f"{location_string(op.location)}: a tensor has no pcp.sharding; run "
                "pcp-propagate-sharding first"
            )
        return from_attribute(sharding)

    def _block(self, block: ir.Block, wanted: Sequence[Layout]) -> None:
        """Reshard in a block whose terminator hands on values laid out so."""
        *ops, end = [view.operation for view in block.operations]
        for op in ops:
            self._visit(op)
        self._demand(end, wanted)

    def _demand(self, op: ir.Operation, wanted: Sequence[Layout]) -> None:
        """Make the op's operands lie so."""
        for i, layout in enumerate(wanted):
            op.operands[i] = self._as(op.operands[i], layout, op)

    def _visit(self, op: ir.Operation) -> None:
        match op.name:
            case "stablehlo.while":
                self._loop(op)
            case "stablehlo.case" | "stablehlo.if":
                self._branches(op)
            case "pcp.reshard" | "pcp.constraint":
                self._explicit(op)
            case "pcp.barrier_prop":
                self._become(op, self._stored(op)[0])
            case "stablehlo.optimization_barrier":
                stored = self._stored(op)
                self._demand(op, stored)
                self._leave(op, stored, stored)
            case "pcp.to_part" | "pcp.from_part":
                self._border(op)
            case _:
                self._compute(op)

    # --- control flow ---

    def _stored(self, op: ir.Operation) -> list[Layout]:
        if not len(op.results):
            return []
        if SHARDING not in op.attributes:
            if all(isinstance(r.type, ir.RankedTensorType) for r in op.results):
                self._read(None, op)
            return [Layout.replicated(_rank(r)) for r in op.results]
        given = op_shardings(op)
        return [
            from_attribute(_behind_barrier(result) or sharding)
            for result, sharding in zip(op.results, given, strict=True)
        ]

    def _loop(self, op: ir.Operation) -> None:
        carried = self._stored(op)
        self._demand(op, carried)
        for i in range(2):
            block = block_of(op, i)
            self.layouts.update(zip(block.arguments, carried, strict=True))
        self._block(block_of(op, 0), [Layout(())])
        self._block(block_of(op, 1), carried)
        self.layouts.update(zip(op.results, carried, strict=True))

    def _branches(self, op: ir.Operation) -> None:
        results = self._stored(op)
        self._demand(op, [Layout(())])
        for i in range(len(op.regions)):
            self._block(block_of(op, i), results)
        self.layouts.update(zip(op.results, results, strict=True))

    def _border(self, op: ir.Operation) -> None:
        """Into and out of a member's own program, whose values are whole to us."""
        layout = from_attribute(op.attributes["sharding"])
        whole = Layout.replicated(_rank(op.results[0]))
        given, left = (layout, whole) if op.name == "pcp.to_part" else (whole, layout)
        stored = self._stored(op)
        self._demand(op, [given])
        self._leave(op, [left], stored)

    # --- one op ---

    def _explicit(self, op: ir.Operation) -> None:
        """What a user asked for is a reshard of what is there."""
        grown = op_shardings(op) if SHARDING in op.attributes else []
        layout = from_attribute(grown[0] if grown else op.attributes["sharding"])
        source = op.operands[0]
        if op.name == "pcp.reshard":
            op.operands[0] = self._settled(source)
            self.layouts[op.results[0]] = layout
            return
        self._become(op, layout)

    def _become(self, op: ir.Operation, layout: Layout) -> None:
        """In place of the op, its operand laid out so."""
        value = self._as(op.operands[0], layout, op)
        op.results[0].replace_all_uses_with(value)
        op.erase()

    def _compute(self, op: ir.Operation) -> None:
        stored = self._stored(op)
        rule = rule_of(op)
        if rule is None:
            whole = [Layout.replicated(_rank(v)) for v in op.operands]
            self._demand(op, whole)
            self._leave(op, [Layout.replicated(_rank(v)) for v in op.results], stored)
            return
        if self._stays_partial(op, rule):
            return
        work = self._work(op, rule, stored)
        assignment = self._cut(work)
        wanted = [work.operand(i, assignment)[1] for i in range(len(op.operands))]
        self._demand(op, wanted)
        partial = rule.reductions(assignment).get("sum", ())
        own = [
            Layout(assemble(rule, dims, assignment, self.mesh).dims, partial)
            for dims in rule.results
        ]
        self._leave(op, own, stored)

    def _leave(
        self, op: ir.Operation, own: Sequence[Layout], stored: Sequence[Layout]
    ) -> None:
        """Note how the op leaves its results; those meant otherwise are resharded."""
        for result, layout, meant in zip(op.results, own, stored, strict=True):
            self.layouts[result] = layout
            if layout.unreduced and layout.unreduced != meant.unreduced:
                self.pending[result] = meant
            elif layout != meant:
                self._replace(result, meant, op)
        if len(op.results):
            op.attributes[SHARDING] = ir.ArrayAttr.get(
                [to_attribute(layout, self.mesh.name) for layout in own]
            )

    def _replace(self, value: ir.Value, layout: Layout, op: ir.Operation) -> ir.Value:
        """A reshard right behind `op`, for all uses of `value`."""
        with ir.InsertionPoint(op):
            new = self._reshard(value, layout, op.location)
        new.owner.operation.move_after(op)
        value.replace_all_uses_except(new, new.owner.operation)
        return new

    def _reshard(self, value: ir.Value, layout: Layout, location: ir.Location):
        with location:
            made = ir.Operation.create(
                "pcp.reshard",
                operands=[value],
                results=[value.type],
                attributes={"sharding": to_attribute(layout, self.mesh.name)},
            )
        self.layouts[made.results[0]] = layout
        return made.results[0]

    # --- partial sums ---

    def _settled(self, value: ir.Value) -> ir.Value:
        """The value as it is meant to lie, reduced if it was pending."""
        meant = self.pending.pop(value, None)
        if meant is None:
            return value
        return self._replace(value, meant, value.owner)

    def _as(self, value: ir.Value, layout: Layout, user: ir.Operation) -> ir.Value:
        """The value laid out so, for `user`."""
        if value in self.pending:
            if _only_use(value):
                # Straight to where its only user wants it.
                self.pending[value] = layout
            value = self._settled(value)
        if self.layouts[value] == layout:
            return value
        key = (value, layout, user.block)
        if key not in self.made or (self.late and self.late.is_stale(key)):
            self.made[key] = self._again(value, layout) or self._before(
                value, layout, user
            )
            if self.late and self.late.covers(value, self.layouts[value], layout):
                self.late.made(key)
                self.made[key].owner.attributes[LATE] = ir.UnitAttr.get()
        return self.made[key]

    def _before(self, value: ir.Value, layout: Layout, user: ir.Operation):
        with ir.InsertionPoint(user):
            return self._reshard(value, layout, user.location)

    def _again(self, value: ir.Value, layout: Layout) -> ir.Value | None:
        """A constant or iota is made once more instead of being resharded."""
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name not in SOURCES:
            return None
        with ir.InsertionPoint(owner):
            copy = owner.operation.clone()
        copy.attributes[SHARDING] = ir.ArrayAttr.get(
            [to_attribute(layout, self.mesh.name)]
        )
        self.layouts[copy.results[0]] = layout
        return copy.results[0]

    def _stays_partial(self, op: ir.Operation, rule: FactorRule) -> bool:
        """Apply an op that is linear in partial sums to them, if it can be."""
        partial = [v for v in linear_in(op) if v in self.pending]
        linear = list(linear_in(op))
        if not linear or len(partial) != len(linear):
            return False
        layouts = {self.layouts[v] for v in partial}
        if len(layouts) != 1 or not all(map(_only_use_by(op), partial)):
            return False
        (layout,) = layouts
        assignment: Assignment = {}
        for dims, operand in zip(rule.operands, op.operands, strict=True):
            if operand in self.pending:
                found, complete = project(rule, dims, layout, self.mesh)
                if not complete:
                    return False
                assignment |= found
        if any(rule.kinds[f] != "pass" for f in assignment):
            return False
        if not expressible(rule, assignment, self.mesh):
            return False
        for i, (dims, operand) in enumerate(
            zip(rule.operands, list(op.operands), strict=True)
        ):
            if operand not in self.pending:
                wanted = assemble(rule, dims, assignment, self.mesh)
                op.operands[i] = self._as(operand, wanted, op)
        (dims,) = rule.results
        own = Layout(assemble(rule, dims, assignment, self.mesh).dims, layout.unreduced)
        stored = self._stored(op)
        for value in partial:
            self.pending.pop(value, None)
        self._leave(op, [own], stored)
        return True

    # --- how to cut the work ---

    def _work(
        self, op: ir.Operation, rule: FactorRule, stored: Sequence[Layout]
    ) -> OpWork:
        """The op with how its tensors lie, or are meant to."""
        layouts = [*map(self._meant, op.operands), *stored]
        tensors = [
            Tensor(layout, tuple(ir.RankedTensorType(v.type).shape), element_width(v))
            for v, layout in zip((*op.operands, *op.results), layouts, strict=True)
        ]
        return OpWork(rule, tensors, self.mesh, self.price_of)

    def _cut(self, work: OpWork) -> Assignment:
        """The cheapest assignment of axes to the op's factors."""
        key = (work.rule, *((t.layout, t.width) for t in work.tensors))
        if key not in self.ways:
            self.ways[key] = work.cheapest()
        return self.ways[key]

    def _meant(self, value: ir.Value) -> Layout:
        return self.pending.get(value) or self.layouts[value]

    def price_of(
        self, old: Layout, new: Layout, shape: tuple[int, ...], width: int
    ) -> float:
        """Bytes that a member sends to change a tensor's layout."""
        return resharding.cost(old, new, shape, width, self.mesh)


# --- facts about ops ---


def _rank(value: ir.Value) -> int:
    type_ = value.type
    return type_.rank if isinstance(type_, ir.RankedTensorType) else 0


def _behind_barrier(value: ir.Value) -> ir.Attribute | None:
    """How a barrier that alone uses the value hands it on: only that is needed."""
    users = [use.owner.operation for use in value.uses]
    if len(users) != 1 or users[0].name != "pcp.barrier_prop":
        return None
    return ir.ArrayAttr(users[0].attributes[SHARDING])[0]


def _only_use(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def _only_use_by(op: ir.Operation):
    """Whether a value is used by `op` alone."""
    return lambda value: all(use.owner.operation == op for use in value.uses)
