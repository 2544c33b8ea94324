"""A function and its backward, traced as one, made the parts of a `pcp.custom_vjp`.

    @joint(operands, cotangents) -> (results, cotangents of the operands)

What depends on a cotangent is the backward function, the rest the forward, and what
crosses are the residuals:

    @f(operands) -> results
    @f_forward(operands) -> (results, residuals)
    @f_backward(residuals, cotangents) -> cotangents of the operands

For a second derivative the forward function calls `@f`, whose rule holds there too: a
residual that is a result of it is differentiated by that rule. Others are as they are
written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir
from pcp.dialect.inlining import inside
from pcp.frontends.constants import erase_dead
from pcp.frontends.jax_rules import MARKS

Value = ir.Value


def split(module: ir.Module, joint: ir.Operation, results: int, name: str) -> None:
    """Define `@name`, `@name_forward` and `@name_backward`, and mark the first."""
    values = list(_end(joint).operands)[:results]
    cotangents = sum(map(hlo.is_differentiable, values))
    count = len(_block(joint).arguments) - cotangents
    saved = _residuals(joint, results, count)
    with module.context:
        whole = _Joint(module, joint, results, count, name, saved)
        primal = whole.primal()
        parts = {"forward": whole.forward(), "backward": whole.backward()}
        for role in MARKS["pcp.custom_vjp"]:
            attribute = f"pcp.custom_vjp.{role}"
            primal.attributes[attribute] = ir.FlatSymbolRefAttr.get(parts[role])


def _residuals(joint: ir.Operation, results: int, count: int) -> list[Value]:
    """What the backward half reads of the forward half; constants it has itself."""
    late = set(list(_block(joint).arguments)[count:])
    read: dict[Value, None] = {}
    known = set(_values(joint))
    for op in _ops(joint):
        taken = dict.fromkeys(v for v in _reads(op) if v in known)
        if late & taken.keys():
            late.update(op.results)
            read |= taken
    read |= dict.fromkeys(list(_end(joint).operands)[results:])
    return [v for v in read if v not in late and not _is_constant(v)]


def _reads(op: ir.Operation) -> Iterator[Value]:
    """The operands of an op and of what is in it."""
    for inner in inside(op):
        yield from inner.operands


def _is_constant(value: Value) -> bool:
    return isinstance(value, ir.OpResult) and not len(value.owner.operation.operands)


# --- the three functions ---


@dataclass(frozen=True)
class _Joint:
    """The function to split, and where its parts meet."""

    module: ir.Module
    function: ir.Operation
    results: int
    count: int
    """Arguments that are no cotangents."""
    name: str
    saved: Sequence[Value]

    def primal(self) -> ir.Operation:
        clone, _ = self._clone("")
        _finish(clone, list(_end(clone).operands)[: self.results], range(self.count))
        return clone

    def forward(self) -> str:
        clone, twins = self._clone("_forward")
        block, end = _block(clone), _end(clone)
        values = list(end.operands)[: self.results]
        with ir.InsertionPoint(end), end.location:
            called = ir.Operation.create(
                "stablehlo.composite",
                operands=list(block.arguments)[: self.count],
                results=[v.type for v in values],
                attributes={
                    "name": ir.StringAttr.get(f"torch.{self.name}"),
                    "decomposition": ir.FlatSymbolRefAttr.get(self.name),
                },
            )
            known = dict(zip(values, called.results, strict=True))
            residuals = [known.get(twins[v], twins[v]) for v in self.saved]
        _finish(clone, [*called.results, *residuals], range(self.count))
        return f"{self.name}_forward"

    def backward(self) -> str:
        clone, twins = self._clone("_backward")
        block = _block(clone)
        given = len(block.arguments)
        for value in self.saved:
            argument = block.add_argument(value.type, clone.location)
            twins[value].replace_all_uses_with(argument)
        order = [*range(given, len(block.arguments)), *range(self.count, given)]
        _finish(clone, list(_end(clone).operands)[self.results :], order)
        return f"{self.name}_backward"

    def _clone(self, suffix: str) -> tuple[ir.Operation, dict[Value, Value]]:
        """A private copy, and the values of the copy by those of the original."""
        clone = self.function.clone(ir.InsertionPoint(self.module.body))
        clone.attributes["sym_name"] = ir.StringAttr.get(self.name + suffix)
        clone.attributes["sym_visibility"] = ir.StringAttr.get("private")
        return clone, dict(zip(_values(self.function), _values(clone), strict=True))


def _values(function: ir.Operation) -> Iterator[Value]:
    yield from _block(function).arguments
    for op in _ops(function):
        yield from op.results


def _finish(
    function: ir.Operation, returned: Sequence[Value], keep: Sequence[int]
) -> None:
    """Return these values, of these of the arguments, in this order."""
    block = _block(function)
    function_body.finish(function, returned)
    erase_dead(block)
    old = list(block.arguments)
    for i in keep:
        new = block.add_argument(old[i].type, function.location)
        old[i].replace_all_uses_with(new)
    for _ in old:
        block.erase_argument(0)
    function_body.retype(function)
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]


def _block(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def _ops(function: ir.Operation) -> list[ir.Operation]:
    return [view.operation for view in _block(function).operations][:-1]


def _end(function: ir.Operation) -> ir.Operation:
    return [view.operation for view in _block(function).operations][-1]
