"""The tensors of a function and what ties their layouts together.

A `FlowNode` is an op with a rule, or a tie: values that control flow hands on unchanged
(a loop's carry before, in and after the loop; the results of the branches of a case).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import refuse
from pcp.passes.core.walk import CONTROL_FLOW, block_of, element_width, returned, walk
from pcp.passes.sharding.factors import FactorRule, Rules
from pcp.passes.sharding.manual import is_manual, mark
from pcp.passes.sharding.rules import rule_of

#: An op that puts a value into a group of values that lie alike.
GROUP = "pcp.sharding_group"


@dataclass
class FlowNode:
    """A rule over values, given as indices into `FlowGraph.values`."""

    rule: FactorRule
    values: tuple[int, ...]
    operands: int
    op: ir.Operation

    @property
    def is_tie(self) -> bool:
        """Whether it hands values on instead of computing."""
        return self.op.name in (*CONTROL_FLOW, "func.return", GROUP)


@dataclass
class FlowGraph:
    """The values of one function, numbered; results of the function come last.

    Of each its shape, and an element's bytes.
    """

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    index: dict[ir.Value, int] = field(default_factory=dict)
    nodes: list[FlowNode] = field(default_factory=list)
    results: list[int | None] = field(default_factory=list)
    #: The first op of each sharding group, with the values of the group.
    groups: dict[int, tuple[ir.Operation, list[int]]] = field(default_factory=dict)

    def number(self, value: ir.Value) -> int | None:
        """The value's index; None for what is no tensor."""
        if value not in self.index:
            type_ = value.type
            if not isinstance(type_, ir.RankedTensorType):
                return None
            self.index[value] = self._add(tuple(type_.shape), element_width(value))
        return self.index[value]

    def _add(self, shape: tuple[int, ...], width: int) -> int:
        self.shapes.append(shape)
        self.widths.append(width)
        return len(self.shapes) - 1

    @classmethod
    def read(cls, function: ir.Operation) -> "FlowGraph":
        """Number the values of `function` and find its nodes, in program order."""
        graph = cls()
        entry = block_of(function, 0)
        for argument in entry.arguments:
            graph.number(argument)
        mark(entry)
        for op in walk(entry):
            graph._visit(op)
        for op, values in graph.groups.values():
            graph._grouped(op, values)
        return graph

    def _visit(self, op: ir.Operation) -> None:
        if is_manual(op):  # its values are tied to no others
            for value in (*op.operands, *op.results):
                self.number(value)
            return
        match op.name:
            case "stablehlo.while":
                self._loop(op)
            case "stablehlo.case" | "stablehlo.if":
                ends = [returned(block_of(op, i)) for i in range(len(op.regions))]
                for i, result in enumerate(op.results):
                    self._tie(op, [*(end.operands[i] for end in ends), result])
            case "func.return":
                self.results = [self._returned(op, value) for value in op.operands]
            case _ if op.name == GROUP:
                number = ir.IntegerAttr(op.attributes["group"]).value
                _, members = self.groups.setdefault(number, (op, []))
                if (value := self.number(op.operands[0])) is not None:
                    members.append(value)
            case "stablehlo.optimization_barrier":
                for operand, result in zip(op.operands, op.results, strict=True):
                    self._tie(op, [operand, result])
            case "stablehlo.return":
                pass
            case _:
                self._compute(op)

    def _returned(self, op: ir.Operation, value: ir.Value) -> int | None:
        """A result of the function, tied to what it is."""
        if (source := self.number(value)) is None:
            return None
        result = self._add(self.shapes[source], self.widths[source])
        self._node(op, [source, result])
        return result

    def _grouped(self, op: ir.Operation, values: Sequence[int]) -> None:
        """Tie the values of a sharding group, which are alike in shape."""
        shapes = {self.shapes[value] for value in values}
        if len(shapes) > 1:
            found = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes))
            refuse(op, f"its group has tensors of {found}; only alike ones lie alike")
        self._node(op, list(dict.fromkeys(values)))

    def _compute(self, op: ir.Operation) -> None:
        found = [self.number(v) for v in (*op.operands, *op.results)]
        if (rule := rule_of(op)) is not None and None not in found:
            values = tuple(v for v in found if v is not None)
            self.nodes.append(FlowNode(rule, values, len(op.operands), op))

    def _loop(self, op: ir.Operation) -> None:
        condition, body = block_of(op, 0), block_of(op, 1)
        after = returned(body).operands
        for i, result in enumerate(op.results):
            self._tie(
                op,
                [
                    op.operands[i],
                    condition.arguments[i],
                    body.arguments[i],
                    after[i],
                    result,
                ],
            )

    def _tie(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        numbers = [self.number(v) for v in values]
        if None not in numbers:
            self._node(op, [n for n in numbers if n is not None])

    def _node(self, op: ir.Operation, values: Sequence[int]) -> None:
        rules = Rules()
        dims = rules.dims(self.shapes[values[0]])
        rule = rules.done([dims] * (len(values) - 1), [dims])
        self.nodes.append(FlowNode(rule, tuple(values), len(values) - 1, op))
