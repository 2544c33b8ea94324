"""The imports that pcp-lower-to-runtime makes: declared, called, and described."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

PREFIX = "pcp_rt."

Facts = dict[str, object]


@dataclass
class Imports:
    """The imports made so far, by name without the prefix."""

    module: ir.Module
    table: dict[str, Facts] = field(default_factory=dict)
    #: The functions that the host binds, by name.
    hosts: dict[str, ir.Operation] = field(default_factory=dict)
    #: What the last send in each block gave back.
    sent: dict[ir.Block, ir.Value] = field(default_factory=dict)
    #: What the last contraction in each block computes.
    computed: dict[ir.Block, ir.Value] = field(default_factory=dict)
    #: What is to be done before the next receive in each block.
    settled: dict[ir.Block, list[ir.Value]] = field(default_factory=dict)

    def call(
        self,
        op: ir.Operation,
        operand: ir.Value,
        result: ir.Type,
        facts: Facts,
        *,
        pure: bool,
        more: Sequence[ir.Value] = (),
        after: ir.Value | None = None,
    ) -> ir.Value:
        """Declare an import for `op` and call it at the insertion point.

        `more` are further operands, `after` is one that it does not read, only waits
        for.
        """
        operands = [operand, *more, *([] if after is None else [after])]
        (made,) = self.calls(op, operands, [result], facts, pure=pure)
        return made

    def calls(
        self,
        op: ir.Operation,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        facts: Facts,
        *,
        pure: bool,
    ) -> list[ir.Value]:
        """The same with any number of results; the first operand names the import."""
        if len(operands) > 1:
            facts = facts | {"operands": len(operands)}
        self.module.context.allow_unregistered_dialects = True
        type_ = hlo.tensor_type(operands[0])
        dtype, shape = str(type_.element_type), list(type_.shape)
        name = f"{facts['kind']}_{len(self.table)}_{dtype}_{prod(shape)}"
        self.table[name] = {"dtype": dtype, "shape": shape, "wire": dtype} | facts
        takes = [v.type for v in operands]
        self._declare(op, name, ir.FunctionType.get(takes, list(results)), pure)
        made = ir.Operation.create(
            "util.call",
            operands=list(operands),
            results=list(results),
            attributes={"callee": ir.FlatSymbolRefAttr.get(PREFIX + name)},
        )
        return list(made.results)

    def _declare(
        self, op: ir.Operation, name: str, signature: ir.FunctionType, pure: bool
    ) -> None:
        attributes = {
            "sym_name": ir.StringAttr.get(PREFIX + name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(signature),
            "iree.abi.model": ir.StringAttr.get("coarse-fences"),
        }
        if pure:
            attributes["nosideeffects"] = ir.UnitAttr.get()
        with ir.InsertionPoint.at_block_begin(self.module.body), op.location:
            ir.Operation.create("util.func", regions=1, attributes=attributes)

    def write(self) -> None:
        """Leave what each import is on the module."""
        if self.table:
            table = {name: _attribute(facts) for name, facts in self.table.items()}
            self.module.operation.attributes["pcp.collectives"] = ir.DictAttr.get(table)


def _attribute(value: object) -> ir.Attribute:
    """Facts as an attribute: strings, integers, lists and dictionaries."""
    if isinstance(value, dict):
        return ir.DictAttr.get({key: _attribute(item) for key, item in value.items()})
    if isinstance(value, list):
        return ir.ArrayAttr.get([_attribute(item) for item in value])
    return hlo.i64(value) if isinstance(value, int) else ir.StringAttr.get(str(value))
