"""Training as ops, expanded by the rules of the optimizers and outer algorithms.

`pcp.optimizer` becomes the update that @apply has, `pcp.outer` the outer step of DiLoCo
or of averaging with its collectives. Hyperparameters are those of the rules' specs, by
the same names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.base import integer, strings, symbol, text
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import bundled, drop_casts, pack, singles, stand_in, unpack
from pcp.errors import ConfigError
from pcp.passes.core import spec as specs
from pcp.passes.core.functions import Port
from pcp.passes.core.rewriting import before, operations, refuse
from pcp.passes.training.optimizers import apply
from pcp.passes.training.optimizers.groups import Groups
from pcp.passes.training.optimizers.numbers import math_type
from pcp.passes.training.optimizers.spec import SGD, AdamW, Nesterov
from pcp.passes.training.outer import average, diloco
from pcp.passes.training.outer.parts.group import Over
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Tensors
from pcp.passes.training.outer.spec import Average, DiLoCo

Value = ir.Value

OPTIMIZERS: dict[str, type[specs.Spec]] = {
    cls.kind: cls for cls in (AdamW, Nesterov, SGD)
}


OUTER: dict[str, tuple[type[specs.Spec], OuterRule]] = {
    Average.kind: (Average, average.RULE),
    DiLoCo.kind: (DiLoCo, diloco.RULE),
}


def any_in(module: ir.Module) -> bool:
    """Whether the module has such an op."""
    return any(op.name in EXPANSIONS for op in operations(module))


def expand_all(module: ir.Module) -> int:
    """Every such op of the module; how many there were."""
    found = [op for op in operations(module) if op.name in EXPANSIONS]
    for op in found:
        try:
            EXPANSIONS[op.name](module, op)
        except ConfigError as error:
            refuse(op, str(error))
    return len(found)


# --- pcp.optimizer ---


def can_write(groups: Groups) -> bool:
    """Whether one `pcp.optimizer` says what the optimizer does to all parameters."""
    return not groups.others and groups.kind in OPTIMIZERS


def write_optimizer(
    groups: Groups, tensors: Sequence[Value], count: int
) -> list[Value]:
    """New parameters, state and step, as one `pcp.optimizer`.

    `tensors` are `count` parameters, their gradients, the state, and the step.
    """
    results = [*tensors[:count], *tensors[2 * count :]]
    return _write("pcp.optimizer", groups.default, tensors, results, count)


def _write(
    name: str,
    spec: specs.Spec,
    tensors: Sequence[Value],
    results: Sequence[Value],
    count: int,
    **attributes: ir.Attribute,
) -> list[Value]:
    """The op for `count` parameters; what it gives has the types of `results`."""
    op = ir.Operation.create(
        name,
        operands=pack(tensors),
        results=bundled([x.type for x in results]),
        attributes={
            "kind": ir.StringAttr.get(spec.kind),
            "count": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count),
            "hyper": _hyper(spec),
            **attributes,
        },
    )
    return unpack(list(op.results))


def _optimizer(module: ir.Module, op: ir.Operation) -> None:
    """The rule's update, at the step after the one that is given."""
    if integer(op, "zero_stage"):
        refuse(op, "pcp-zero{stage=...} cuts the state; run it, without zero_stage")
    count, operands = integer(op, "count"), list(op.operands)
    spec: Any = _spec(op, OPTIMIZERS[text(op, "kind")])
    groups = Groups(spec)
    with before(op):
        *tensors, before_it = singles(operands)
        params, grads = tensors[:count], tensors[count : 2 * count]
        kept = tensors[2 * count :]
        _check_floats(op, params, grads)
        trained = apply.assign(
            groups, [Port(f"{i}", "param", p.type) for i, p in enumerate(params)]
        )
        _check_state(op, kept, [port.type for port in apply.ports(trained)])
        now = hlo.add(before_it, hlo.constant_like(before_it, 1))
        new = apply.updates(groups, trained, now, params, grads, kept)
        stand_in(list(op.results), [*new, now])
    op.erase()
    drop_casts(operands)


def _check_state(
    op: ir.Operation, kept: Sequence[Value], wanted: Sequence[ir.Type]
) -> None:
    for value, type_ in zip(kept, wanted, strict=True):
        if value.type != type_:
            refuse(op, f"has a state of {value.type}, and the rule keeps {type_}")


def _check_floats(
    op: ir.Operation, params: Sequence[Value], others: Sequence[Value]
) -> None:
    """All are updated in one type."""
    for param, other in zip(params, others, strict=True):
        elements = [hlo.element_type(x) for x in (param, other)]
        floats = all(map(hlo.is_float, elements))
        if not floats or len({str(math_type(e)) for e in elements}) > 1:
            refuse(op, f"cannot update {param.type} by {other.type}; convert one")


# --- pcp.outer ---


def can_write_outer(spec: specs.Spec) -> bool:
    """Whether one `pcp.outer` says what the algorithm's outer step does."""
    return type(spec) in [cls for cls, _ in OUTER.values()]


def write_outer(spec: specs.Spec, now: OuterRound) -> tuple[list[Value], Tensors]:
    """New parameters and slots of one outer step, as one `pcp.outer`."""
    count, over = len(now.anchors), now.over
    state = [x for tensors in now.state.values() for x in tensors]
    new = _write(
        "pcp.outer",
        spec,
        [*now.anchors, *now.locals, *state, now.tokens],
        [*now.anchors, *state],
        count,
        mesh=ir.FlatSymbolRefAttr.get(over.mesh),
        axes=ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in over.axes]),
        **({"ordered": ir.UnitAttr.get()} if over.ordered else {}),
    )
    return new[:count], _by_slot(now.state, new[count:])


def _by_slot(names: Iterable[str], state: Sequence[Value]) -> Tensors:
    """The tensors of each slot, all of which have equally many."""
    slots = list(names)
    each = len(state) // max(len(slots), 1)
    return {s: [*state[i * each : (i + 1) * each]] for i, s in enumerate(slots)}


def _outer(module: ir.Module, op: ir.Operation) -> None:
    """One outer step, with the mean over the members."""
    cls, rule = OUTER[text(op, "kind")]
    spec: Any = _spec(op, cls)
    outer_step = rule.step
    assert outer_step is not None
    count, operands = integer(op, "count"), list(op.operands)
    over = Over(
        symbol(op, "mesh"), tuple(strings(op, "axes")), "ordered" in op.attributes
    )
    with before(op):
        *values, tokens = singles(operands)
        anchors, own, kept = (
            values[:count],
            values[count : 2 * count],
            values[2 * count :],
        )
        _check_floats(op, anchors, own)
        slots = rule.state(spec)
        _check_state(op, kept, [s.each(a.type) for s in slots for a in anchors])
        state = _by_slot([slot.name for slot in slots], kept)
        new, changed = outer_step(
            spec, OuterRound(anchors, own, tokens, state, over=over)
        )
        stand_in(list(op.results), [*new, *(x for s in slots for x in changed[s.name])])
    op.erase()
    drop_casts(operands)


# --- hyperparameters ---


def _spec(op: ir.Operation, cls: type[specs.Spec]) -> specs.Spec:
    """The rule's spec with the op's `hyper`."""
    hyper = ir.DictAttr(op.attributes["hyper"]) if "hyper" in op.attributes else ()
    items = ",".join(f"{entry.name}={_text(entry.attr)}" for entry in hyper)
    kind = text(op, "kind")
    return specs.parse(f"{kind}{{{items}}}", {kind: cls}, "kind")


def _text(attribute: ir.Attribute) -> str:
    if isinstance(attribute, ir.BoolAttr):
        return str(ir.BoolAttr(attribute).value).lower()
    if isinstance(attribute, ir.FloatAttr):
        return repr(ir.FloatAttr(attribute).value)
    if isinstance(attribute, ir.IntegerAttr):
        return str(ir.IntegerAttr(attribute).value)
    if isinstance(attribute, ir.StringAttr):
        return ir.StringAttr(attribute).value
    raise ConfigError(f"hyper has {attribute}, no number and no text")


def _hyper(spec: specs.Spec) -> ir.DictAttr:
    """The hyperparameters that are not the rule's defaults."""
    changed = {f.name: getattr(spec, f.name) for f in fields(spec)}
    return ir.DictAttr.get(
        {
            f.name: _attribute(changed[f.name])
            for f in fields(spec)
            if changed[f.name] != f.default
        }
    )


def _attribute(value: specs.Hyper) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    return ir.StringAttr.get(value)


EXPANSIONS: Mapping[str, Callable[[ir.Module, ir.Operation], None]] = {
    "pcp.optimizer": _optimizer,
    "pcp.outer": _outer,
}
