"""Shardy's meshes and shardings, read at the ops that have them.

What pcp has no word for is an `IRError` at its place, which says what to write instead.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.shardy import manual
from pcp.dialect.shardy.text import Parsed, read_sharding
from pcp.errors import IRError

SHARDING = "sdy.sharding"

#: Attributes that hold shardings.
HOLDERS = (
    *(SHARDING, "sharding", "in_shardings", "out_shardings"),
    *("arg_attrs", "res_attrs"),
)

NAMED = re.compile(r"<@(\w+), \[")
_AXES = re.compile(r'"([^"]*)"=(\d+)')


@dataclass
class Reader:
    """The meshes of a module, and what its shardings say over them."""

    source: str
    #: Meshes without an axis: a sharding over one says nothing.
    empty: set[str] = field(default_factory=set)
    #: The mesh kept in place of each: JAX writes one again for other devices.
    kept: dict[str, str] = field(default_factory=dict)
    axes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def refuse(self, op: ir.Operation, what: str) -> NoReturn:
        """Raise an `IRError` at `op`."""
        where = location_string(op.location, self.source)
        raise IRError(f"{where}: {op.name}: {what}")

    def manual_axes(self, op: ir.Operation) -> manual.Axes:
        """The mesh of a body of parts."""
        on = [n for key in HOLDERS if key in op.attributes for n in self._on(op, key)]
        return self.axes_of(on[0] if on else next(iter(self.axes)))

    def axes_of(self, mesh: str) -> manual.Axes:
        """A mesh's axes."""
        return manual.Axes(mesh, {axis: int(n) for axis, n in self.axes[mesh]})

    def _on(self, op: ir.Operation, key: str) -> list[str]:
        """The meshes that an attribute of shardings names, as they are kept."""
        found: list[str] = NAMED.findall(str(op.attributes[key]))
        return [self.kept.get(name, name) for name in found if name not in self.empty]

    def read(self, op: ir.Operation, attribute: ir.Attribute) -> Parsed:
        """One sharding, an error at `op` where it cannot be read."""
        return self.read_all(op, attribute, lambda text: [read_sharding(text)])[0]

    def read_all(
        self,
        op: ir.Operation,
        attribute: ir.Attribute,
        parse: Callable[[str], list[Parsed]],
    ) -> list[Parsed]:
        """The shardings of an attribute of `op`, over the meshes that are kept."""
        try:
            found = parse(str(attribute))
        except ValueError as error:
            self.refuse(op, f"{attribute}: {error}")
        for parsed in found:
            parsed.mesh = self.kept.get(parsed.mesh, parsed.mesh)
        return found

    def mesh(self, op: ir.Operation, named: set[str]) -> None:
        """Take `sdy.mesh` out of the module; one that is `named` becomes `pcp.mesh`."""
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

    def constrained(self, value: ir.Value, parsed: Parsed) -> ir.Value:
        """The value with a constraint, where the sharding says anything."""
        return annotated("constraint", value, parsed) if self.matters(parsed) else value

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


def annotated(
    name: str, value: ir.Value, parsed: Parsed, type_: ir.Type | None = None
) -> ir.Value:
    """`pcp.<name>` of a value and its sharding."""
    sharding = ir.Attribute.parse(str(parsed))
    return hlo.op(
        f"pcp.{name}", [value], [type_ or value.type], sharding=sharding
    ).result
