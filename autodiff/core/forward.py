"""Forward mode: tangents through ops in program order, from the same table.

Where a rule says how an op is linear, its tangent follows at once: a linear op
applied to the tangents, a product rule, the derivative of an elementwise op times
the tangent. Everything else is transposed twice. The VJP is a linear function of
g; emitting it for a stand-in g and walking back through what was emitted gives
the transpose of the transpose, which is J v. The ops that depend on the stand-in
are dead afterwards.
"""

from collections.abc import Sequence

from pcp.autodiff.core import registry
from pcp.autodiff.core.activity import inputs, propagate, require_held
from pcp.autodiff.core.cotangents import Cotangents, materialize, total
from pcp.autodiff.core.kinds import (
    Bilinear,
    Decomposed,
    Elementwise,
    Linear,
    Refusal,
    Rule,
    Site,
    Vjp,
)
from pcp.autodiff.core.reverse import naming, pull_back
from pcp.autodiff.core.shifts import cancels
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: The tangent of each value that has one; a value without is constant.
Tangents = dict[Value, Value]


def push_forward(ops: Sequence[ir.Operation], tangents: Tangents) -> None:
    """Extend `tangents` through `ops`, which lie in front of the insertion point.

    Each tangent is emitted right behind its op, so that an op that takes its place
    can use those of its operands. Raises `MissingRule` at an op on the active path
    that has no rule.
    """
    behind = [*ops[1:], ir.InsertionPoint.current.ref_operation]
    for op, after in zip(ops, behind, strict=False):
        values = inputs(op)
        if registry.is_boundary(op.name) and _is_read(op):
            _refuse(op, values, tangents)
        if not any(v in tangents for v in values):
            continue
        if isinstance(registry.find(op.name), Refusal | Decomposed):
            _refuse(op, values, tangents)
        if registry.is_no_gradient(op.name) or cancels(op):
            continue
        require_held(op, op.results)
        if not any(map(_wants_tangent, op.results)):
            continue
        rule = registry.find(op.name)
        if rule is None:
            raise registry.missing(op, "an input with a tangent")
        with naming(op), op.location, ir.InsertionPoint(after):
            _visit(op, rule, values, tangents)


def _wants_tangent(result: Value) -> bool:
    return hlo.is_differentiable(result) and next(iter(result.uses), None) is not None


def _is_read(op: ir.Operation) -> bool:
    """Whether what came in is used as more than a constant: it has a tangent, there."""
    return any(
        use.owner.name != "pcp.stop_gradient"
        for result in op.results
        if hlo.is_differentiable(result)
        for use in result.uses
    )


def _refuse(op: ir.Operation, values: tuple[Value, ...], tangents: Tangents) -> None:
    """The error of an op that is refused, whatever its results are."""
    wanted = tuple(v in tangents for v in values)
    nothing = (None,) * len(op.results)
    rule = registry.find(op.name)
    if rule is not None:
        rule.vjp(Site(op, values, nothing, wanted))


def push_through(op: ir.Operation, rule: Rule | None, tangents: Tangents) -> None:
    """Set the tangents of one op's results by `rule`, at the insertion point."""
    if rule is None:
        raise registry.missing(op, "an input with a tangent")
    _visit(op, rule, inputs(op), tangents)


def _visit(
    op: ir.Operation, rule: Rule, values: tuple[Value, ...], tangents: Tangents
) -> None:
    if isinstance(rule, Vjp) and rule.forward is not None:
        rule.forward(op, tangents)
    elif len(op.results) == 1 and hlo.is_differentiable(op.results[0]):
        tangent = _tangent(op, rule, values, tangents)
        if tangent is not None:
            tangents[op.results[0]] = tangent
    else:
        _transpose_twice(op, rule, values, tangents)


def _tangent(
    op: ir.Operation, rule: Rule, values: tuple[Value, ...], tangents: Tangents
) -> Value | None:
    """The tangent of the only result."""
    match rule:
        case Linear():
            return _linear(op, rule, tangents)
        case Bilinear():
            terms = [
                _applied(op, {i: tangents[v]})
                for i, v in enumerate(values)
                if v in tangents
            ]
            return total(terms)
        case Elementwise() if _keeps_field(op):
            terms = [
                derive(tangents[v], *op.operands, op.results[0])
                for v, derive in zip(op.operands, rule.derivatives, strict=True)
                if derive and v in tangents
            ]
            present = [term for term in terms if term is not None]
            return total(present) if present else None
    _transpose_twice(op, rule, values, tangents)
    return tangents.get(op.results[0])


def _keeps_field(op: ir.Operation) -> bool:
    """Not from complex to real, where transpose and tangent differ."""
    kinds = {hlo.is_complex(hlo.element_type(v)) for v in (*op.operands, *op.results)}
    return len(kinds) == 1


def _linear(op: ir.Operation, rule: Linear, tangents: Tangents) -> Value:
    """The op on the tangents; operands that it is linear in have zeros if constant."""
    present = {i: tangents[v] for i, v in enumerate(op.operands) if v in tangents}
    if len(present) == 1:
        ((index, only),) = present.items()
        if op.name == "stablehlo.add":
            return only
        if op.name == "stablehlo.subtract":
            return only if index == 0 else hlo.negate(only)
    changed = {
        i: present.get(i) or hlo.zeros(v.type)
        for i, v in enumerate(op.operands)
        if hlo.is_differentiable(v) and _is_linear_in(rule, i)
    }
    return _applied(op, changed)


def _is_linear_in(rule: Linear, index: int) -> bool:
    if rule.every is not None:
        return True
    return index < len(rule.transposes) and rule.transposes[index] is not None


def _applied(op: ir.Operation, changed: dict[int, Value]) -> Value:
    """The op with some operands replaced."""
    return ir.Operation.create(
        op.name,
        operands=[changed.get(i, v) for i, v in enumerate(op.operands)],
        results=[r.type for r in op.results],
        attributes={name: op.attributes[name] for name in op.attributes},
    ).results[0]


def _transpose_twice(
    op: ir.Operation, rule: Rule, values: tuple[Value, ...], tangents: Tangents
) -> None:
    """J v as the transpose of g ↦ Jᵀg."""
    wanted = tuple(v in tangents for v in values)
    husk = ir.Operation.create("builtin.module", regions=1)
    block = husk.regions[0].blocks.append()
    with ir.InsertionPoint(block):
        stand_ins = tuple(
            hlo.zeros(r.type) if hlo.is_differentiable(r) else None for r in op.results
        )
        answer = rule.vjp(
            Site(op, values, stand_ins, wanted, dict.fromkeys(tangents, ""))
        )
    emitted = [inner.operation for inner in block.operations]
    anchor = ir.InsertionPoint.current.ref_operation
    for inner in emitted:
        inner.move_before(anchor)
    husk.erase()
    cotangents = Cotangents()
    for value, cotangent in zip(values, answer, strict=True):
        if cotangent is not None and value in tangents:
            cotangents.add(cotangent, tangents[value])
    active = propagate(emitted, {g: "" for g in stand_ins if g is not None})
    pull_back(emitted, cotangents, active)
    # The op itself may have been replaced by a wider one; its results count.
    for result, stand_in in zip(op.results, stand_ins, strict=True):
        if stand_in is not None and (tangent := cotangents.take(stand_in)) is not None:
            tangents[result] = tangent


def tangent_or_zeros(value: Value, tangents: Tangents) -> Value:
    """The tangent, made of zeros where there is none: only at a boundary."""
    return materialize(tangents.get(value), value)
