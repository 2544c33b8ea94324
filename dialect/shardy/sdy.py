"""Shardings that JAX writes (Shardy's `sdy` dialect), read as pcp's own.

    #sdy.sharding<@mesh, [{"dp"}, {"tp", ?}p1], replicated={"x"}, unreduced={"y"}>

becomes

    #pcp.sharding<@mesh, [["dp"], #pcp.dim<["tp"], 0, 1>], ["x"], ["y"]>

The wheel has no `sdy` dialect: the text is parsed in generic form with unregistered
dialects allowed, where attributes arrive as opaque text. What pcp has no word for
is an `IRError` at its place, which says what to write instead. The order in which
JAX numbers its devices is dropped: which device is which member is pcp's to say.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.inlining import inline_annotated
from pcp.dialect.shardy import manual
from pcp.dialect.shardy.text import Parsed, read_sharding, read_shardings, rule_text
from pcp.errors import IRError

SHARDING = "sdy.sharding"
OURS = "pcp.sharding"
RULE, OUR_RULE = "sdy.sharding_rule", "pcp.sharding_rule"
GENERIC = (
    "print the module in generic form: "
    "lowered.compiler_ir('stablehlo').operation.get_asm(print_generic_op_form=True)"
)

#: Attributes that hold shardings.
_HOLDERS = (
    *(SHARDING, "sharding", "in_shardings", "out_shardings"),
    *("arg_attrs", "res_attrs"),
)

_NAMED = re.compile(r"<@(\w+), \[")
_AXES = re.compile(r'"([^"]*)"=(\d+)')


def is_in(text: str) -> bool:
    """Whether MLIR text may hold something of Shardy's."""
    return "sdy." in text


# --- a module ---


def convert(module: ir.Module, source: str = "-") -> None:
    """Rewrite all of Shardy's in `module` as pcp's, in place.

    On the entry's arguments and results shardings become `pcp.sharding`; on other
    functions, which are inlined, and on ops they become `pcp.constraint`.
    Raises `IRError` at what pcp cannot say.
    """
    with module.context:
        manual.restore_calls(module)
        _Conversion(module, source).run()
        inline_annotated(module)


@dataclass
class _Conversion:
    module: ir.Module
    source: str
    #: Meshes without an axis: a sharding over one says nothing.
    empty: set[str] = field(default_factory=set)
    #: The mesh kept in place of each: JAX writes one again for other devices.
    kept: dict[str, str] = field(default_factory=dict)
    axes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def run(self) -> None:
        named = self._named()
        for op in list(self._operations()):
            if op.name == "sdy.mesh":
                self._mesh(op, named)
        # Bodies are inlined from the inside out.
        for op in reversed(list(self._operations())):
            self._attribute(op)
            if op.name.startswith("sdy."):
                rule = RULES.get(op.name)
                if rule is None:
                    if op.name == "sdy.return":
                        continue  # goes with the op around it
                    self.refuse(op, "pcp has no such op; leave it out")
                rule(self, op)
        for op in self._operations():
            if op.name == "func.func":
                self._function(op)

    def _operations(self) -> Iterator[ir.Operation]:
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            found.append(op.operation)
            return ir.WalkResult.ADVANCE

        self.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        yield from found[1:]

    def refuse(self, op: ir.Operation, what: str) -> NoReturn:
        where = location_string(op.location, self.source)
        raise IRError(f"{where}: {op.name}: {what}")

    def manual_axes(self, op: ir.Operation) -> manual.Axes:
        """The mesh of a body of parts."""
        on = [n for key in _HOLDERS if key in op.attributes for n in self._on(op, key)]
        return self.axes_of(on[0] if on else next(iter(self.axes)))

    def axes_of(self, mesh: str) -> manual.Axes:
        """A mesh's axes."""
        return manual.Axes(mesh, {axis: int(n) for axis, n in self.axes[mesh]})

    def _on(self, op: ir.Operation, key: str) -> list[str]:
        """The meshes that an attribute of shardings names, as they are kept."""
        found: list[str] = _NAMED.findall(str(op.attributes[key]))
        return [self.kept.get(name, name) for name in found if name not in self.empty]

    def read(self, op: ir.Operation, attribute: ir.Attribute) -> Parsed:
        """One sharding, an error at `op` where it cannot be read."""
        return self.read_all(op, attribute, lambda text: [read_sharding(text)])[0]

    def read_all(
        self, op: ir.Operation, attribute: ir.Attribute, reader
    ) -> list[Parsed]:
        try:
            found = reader(str(attribute))
        except ValueError as error:
            self.refuse(op, f"{attribute}: {error}")
        for parsed in found:
            parsed.mesh = self.kept.get(parsed.mesh, parsed.mesh)
        return found

    def _named(self) -> set[str]:
        """The meshes that a sharding names; the others say nothing of the program."""
        return {
            name
            for op in self._operations()
            for holder in _HOLDERS
            if holder in op.attributes
            for name in _NAMED.findall(str(op.attributes[holder]))
        }

    def _mesh(self, op: ir.Operation, named: set[str]) -> None:
        text = str(op.attributes["mesh"])
        name = ir.StringAttr(op.attributes["sym_name"]).value
        axes = _AXES.findall(text)
        if named and name not in named:
            op.erase()
            return
        if not axes and "device_ids" in text:
            self.refuse(op, f"{text} is a single device; leave its shardings out")
        if not axes:
            self.empty.add(name)
        elif name not in self._merged(op, name, axes):
            listed = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in axes)
            facts = f'axes = [{listed}], devices = [], sym_name = "{name}"'
            with op.location:
                made = ir.Operation.parse(f'"pcp.mesh"() {{{facts}}} : () -> ()')
                ir.InsertionPoint(op).insert(made)
        op.erase()

    def _merged(
        self, op: ir.Operation, name: str, axes: list[tuple[str, str]]
    ) -> dict[str, str]:
        """What stands for a mesh like one before; one with other axes stays."""
        for first, known in self.axes.items():
            if known == axes:
                self.kept[name] = first
                return self.kept
        self.axes[name] = axes
        return self.kept

    def _function(self, op: ir.Operation) -> None:
        """Shardings of arguments and results."""
        name = ir.StringAttr(op.attributes["sym_name"]).value
        is_private = "sym_visibility" in op.attributes and (
            ir.StringAttr(op.attributes["sym_visibility"]).value == "private"
        )
        blocks = op.regions[0].blocks
        for which in ("arg_attrs", "res_attrs"):
            if which not in op.attributes:
                continue
            entries, found = [], []
            for entry in map(ir.DictAttr, ir.ArrayAttr(op.attributes[which])):
                kept = {n.name: n.attr for n in entry if n.name != SHARDING}
                parsed = self.read(op, entry[SHARDING]) if SHARDING in entry else None
                parsed = parsed if parsed and self.matters(parsed) else None
                if parsed is not None and not is_private:
                    kept[OURS] = ir.Attribute.parse(str(parsed))
                entries.append(ir.DictAttr.get(kept))
                found.append(parsed)
            op.attributes[which] = ir.ArrayAttr.get(entries)
            if is_private and blocks:
                self._constrain_ports(blocks[0], which, found)
            elif is_private and any(found):
                self.refuse(op, f"@{name} has shardings and no body")

    def _constrain_ports(
        self, block: ir.Block, which: str, found: Sequence[Parsed | None]
    ) -> None:
        """What a function that is inlined said of its arguments or results."""
        *_, end = block.operations
        for i, parsed in enumerate(found):
            if parsed is None:
                continue
            if which == "arg_attrs":
                start = ir.InsertionPoint.at_block_begin(block)
                self.constrain(block.arguments[i], parsed, start)
            else:
                with ir.InsertionPoint(end), end.operands[i].location:
                    made = self.constrained(end.operands[i], parsed)
                end.operation.operands[i] = made

    def _attribute(self, op: ir.Operation) -> None:
        """`sdy.sharding` on an op: a constraint for each of its results."""
        if RULE in op.attributes:
            text = rule_text(str(op.attributes[RULE]))
            del op.attributes[RULE]
            op.attributes[OUR_RULE] = ir.StringAttr.get(text)
        if SHARDING not in op.attributes or op.name == "func.func":
            return
        found = self.read_all(op, op.attributes[SHARDING], read_shardings)
        del op.attributes[SHARDING]
        if not len(op.results):  # an op with effects alone: there is nothing to lie
            return
        for result, parsed in zip(op.results, found, strict=True):
            self.constrain(result, parsed, ir.InsertionPoint.after(op))

    def constrained(self, value: ir.Value, parsed: Parsed) -> ir.Value:
        """The value with a constraint, where the sharding says anything."""
        return (
            _annotated("constraint", value, parsed) if self.matters(parsed) else value
        )

    def constrain(
        self, value: ir.Value, parsed: Parsed, point: ir.InsertionPoint
    ) -> None:
        """A constraint between a value and all its uses."""
        uses = [(use.owner.operation, use.operand_number) for use in value.uses]
        with point, value.location:
            made = self.constrained(value, parsed)
        for owner, number in uses:
            owner.operands[number] = made

    def matters(self, parsed: Parsed) -> bool:
        """Whether it says anything about where a tensor lies."""
        return parsed.mesh not in self.empty and parsed.says_something


def _annotated(
    name: str, value: ir.Value, parsed: Parsed, type_: ir.Type | None = None
) -> ir.Value:
    """`pcp.<name>` of a value and its sharding."""
    facts = {"sharding": ir.Attribute.parse(str(parsed))}
    made = ir.Operation.create(f"pcp.{name}", [type_ or value.type], [value], facts)
    return made.results[0]


# --- ops ---


def _annotation(conversion: _Conversion, op: ir.Operation) -> None:
    """`sdy.sharding_constraint`; `sdy.reshard` and Shardy's collectives."""
    is_constraint = op.name == "sdy.sharding_constraint"
    key = "sharding" if "sharding" in op.attributes else "out_sharding"
    parsed = conversion.read(op, op.attributes[key])
    (value,) = op.operands
    with ir.InsertionPoint(op), op.location:
        if is_constraint:
            value = conversion.constrained(value, parsed)
        else:
            value = _annotated("reshard", value, parsed)
    op.results[0].replace_all_uses_with(value)
    op.erase()


#: As Shardy prints a direction, by name or as its number.
_DIRECTIONS = {
    **{"NONE": "none", "FORWARD": "fwd", "BACKWARD": "bwd", "BOTH": None},
    **{"0": "none", "1": "fwd", "2": "bwd", "3": None},
}


def _barrier(conversion: _Conversion, op: ir.Operation) -> None:
    """`sdy.propagation_barrier`; one that lets both through says nothing."""
    said = str(op.attributes["allowed_direction"])
    found = re.findall(r"\b(?:[A-Z]+|\d)\b", said)
    if not found or found[0] not in _DIRECTIONS:
        conversion.refuse(op, f"{said} is no direction that pcp knows")
    value, direction = op.operands[0], _DIRECTIONS[found[0]]
    if direction is not None:
        facts = {"direction": ir.StringAttr.get(direction)}
        with ir.InsertionPoint(op), op.location:
            value = ir.Operation.create(
                "pcp.barrier_prop", [value.type], [value], attributes=facts
            ).results[0]
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _manual(conversion: _Conversion, op: ir.Operation) -> None:
    """`jax.shard_map`: a body of whole tensors in place, any other as of parts."""
    block = op.regions[0].blocks[0]
    *_, end = (view.operation for view in block.operations)
    inside = [a.type for a in block.arguments] + [v.type for v in end.operands]
    outside = [v.type for v in op.operands] + [r.type for r in op.results]
    shardings = [
        conversion.read_all(op, op.attributes[key], read_shardings)
        for key in ("in_shardings", "out_shardings")
    ]
    border = _WHOLE
    if inside != outside or manual.knows_members(op):
        border = _NESTED if manual.is_nested(op) else _PARTS
        axes = conversion.manual_axes(op)
        for parsed in (p for each in shardings for p in each if border is _NESTED):
            cut = {axis for dim in parsed.dims for axis in dim.axes}
            if parsed.unreduced or not cut <= set(axes.sizes):
                conversion.refuse(op, f"{parsed} in the body of another shard_map")
        for inner in manual.collectives_in(op):
            try:
                manual.convert(inner, axes)
            except ValueError as error:
                conversion.refuse(inner, str(error))
        manual.drop_hints(op)
        own = manual.names(str(op.attributes["manual_axes"]))
        shardings = [[parsed.along(own) for parsed in each] for each in shardings]
    border.cross(conversion, op, block.arguments, op.operands, shardings[0])
    for inner in block.operations:
        if inner.operation != end:
            inner.operation.move_before(op)
    border.cross(conversion, op, op.results, end.operands, shardings[1])
    op.erase()


#: What stands for a value beyond a border: by its sharding there, and its type.
Crossing = Callable[[_Conversion, ir.Value, Parsed, ir.Type], ir.Value]


@dataclass(frozen=True)
class _Border:
    """How values go into a body, and out of it."""

    into: Crossing
    out: Crossing

    def cross(
        self,
        conversion: _Conversion,
        op: ir.Operation,
        targets: Sequence[ir.Value],
        values: Sequence[ir.Value],
        shardings: Sequence[Parsed],
    ) -> None:
        """Put `values` in the place of arguments or results; a token as it is."""
        for target, value, parsed in zip(targets, values, shardings, strict=True):
            if isinstance(value.type, ir.RankedTensorType):
                is_in = isinstance(target, ir.BlockArgument)
                crossing = self.into if is_in else self.out
                with ir.InsertionPoint(op), value.location:
                    value = crossing(conversion, value, parsed, target.type)
            target.replace_all_uses_with(value)


def _laid(
    conversion: _Conversion, value: ir.Value, parsed: Parsed, _: ir.Type
) -> ir.Value:
    return conversion.constrained(value, parsed)


def _part(
    conversion: _Conversion, value: ir.Value, parsed: Parsed, type_: ir.Type
) -> ir.Value:
    value = _annotated("constraint", value, parsed)
    return _annotated("to_part", value, parsed, type_)


def _joined(
    conversion: _Conversion, value: ir.Value, parsed: Parsed, type_: ir.Type
) -> ir.Value:
    value = _annotated("from_part", value, parsed, type_)
    return _annotated("constraint", value, parsed)


def _own_part(
    conversion: _Conversion, value: ir.Value, parsed: Parsed, _: ir.Type
) -> ir.Value:
    dims = [dim.axes for dim in parsed.dims]
    return manual.own_part(value, dims, conversion.axes_of(parsed.mesh))


def _gathered(
    conversion: _Conversion, value: ir.Value, parsed: Parsed, _: ir.Type
) -> ir.Value:
    dims = [dim.axes for dim in parsed.dims]
    return manual.whole(value, dims, conversion.axes_of(parsed.mesh))


#: Of a body of whole tensors; of one of parts; and of one in a body of parts, where a
#: member has all of each value along the axes that are left.
_WHOLE = _Border(_laid, _laid)
_PARTS = _Border(_part, _joined)
_NESTED = _Border(_own_part, _gathered)


def _group(conversion: _Conversion, op: ir.Operation) -> None:
    """`sdy.sharding_group`."""
    facts = {"group": op.attributes["group_id"]}
    with ir.InsertionPoint(op), op.location:
        ir.Operation.create("pcp.sharding_group", [], list(op.operands), facts)
    op.erase()


def _constant(conversion: _Conversion, op: ir.Operation) -> None:
    """`sdy.constant` is StableHLO's, which Shardy's passes keep from folding."""
    facts = {"value": op.attributes["value"]}
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.constant", [op.results[0].type], attributes=facts
        )
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _named(conversion: _Conversion, op: ir.Operation) -> None:
    conversion.refuse(op, "call a function instead of a named computation")


RULES: dict[str, Callable[[_Conversion, ir.Operation], None]] = {
    **dict.fromkeys(
        (
            f"sdy.{name}"
            for name in (
                *("all_gather", "all_reduce", "all_slice", "all_to_all"),
                *("collective_permute", "reduce_scatter", "replicated_to_unreduced"),
                *("reshard", "sharded_to_unreduced"),
            )
        ),
        _annotation,
    ),
    "sdy.constant": _constant,
    "sdy.manual_computation": _manual,
    "sdy.named_computation": _named,
    "sdy.propagation_barrier": _barrier,
    "sdy.sharding_constraint": _annotation,
    "sdy.sharding_group": _group,
}
