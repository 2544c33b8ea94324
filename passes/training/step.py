"""pcp.step: a gradient and an optimizer as one function.

How many parameters there are follows from the optimizer, which takes parameters,
gradients and state, and gives parameters and state. Over a mesh, each member has data
of its own, and takes the mean of what the gradient function gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.attributes import axis_sizes
from pcp.dialect.base import integers, symbol, text
from pcp.dialect.bindings import ir
from pcp.errors import nearest
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.core.rewriting import refuse
from pcp.passes.training.outer.parts.group import Over, weighted_mean

Value = ir.Value

PASSES = {
    "buckets": "pcp-bucket-collectives{bytes=...}",
    "schedule": "pcp-schedule{kind=...}",
    "zero": "pcp-zero{stage=...}",
}
"""What follows a key of the plan that is about whole programs."""


@dataclass(frozen=True)
class Parts:
    """The two functions of a step, and which arguments of the first are parameters."""

    grad: ir.Operation
    optimizer: ir.Operation
    wrt: Sequence[int]

    @property
    def values(self) -> int:
        """How many results of the gradient function are no gradients."""
        return len(functions.function_type(self.grad).results) - len(self.wrt)


def expand(module: ir.Module, op: ir.Operation) -> None:
    """`@step(inputs, state) -> values, params, state` in the op's place.

    Inputs are those of the gradient function, in its order; values are what it gives
    beside gradients. Names and roles are those of the two functions.
    """
    parts, over = _parts(module, op), _over(module, op)
    name, count = text(op, "sym_name"), len(parts.wrt)
    given = functions.function_type(parts.grad)
    kept = functions.function_type(parts.optimizer)
    for type_ in given.results:
        if over is not None and not hlo.is_float(hlo.element_type(type_)):
            refuse(op, f"@{symbol(op, 'grad')} gives {type_}, which has no mean")
    with op.location:
        op.erase()
        types = [*given.inputs, *kept.inputs[2 * count :]]

        def build(*arguments: Value) -> list[tuple[Port, Value]]:
            inputs = arguments[: len(given.inputs)]
            made = functions.call(
                functions.symbol_name(parts.grad), inputs, given.results
            )
            found = list(made) if over is None else _means(made, over)
            params = [inputs[i] for i in parts.wrt]
            taken = [*params, *found[parts.values :], *arguments[len(inputs) :]]
            new = functions.call(
                functions.symbol_name(parts.optimizer), taken, kept.results
            )
            results = [*found[: parts.values], *new]
            return [(Port("", "", x.type), x) for x in results]

        step = functions.define(module, name, [Port("", "", t) for t in types], build)
        _say(step, parts)


def _say(step: ir.Operation, parts: Parts) -> None:
    """Give the step's arguments and results the attributes of the two functions."""
    count = len(parts.wrt)
    state = functions.argument_attributes(parts.optimizer)[2 * count :]
    given = functions.argument_attributes(parts.grad)
    functions.set_argument_attributes(step, [*given, *state])
    values = functions.result_attributes(parts.grad)[: parts.values]
    made = functions.result_attributes(parts.optimizer)
    functions.set_result_attributes(step, [*values, *made])


def _means(found: Sequence[Value], over: Over) -> list[Value]:
    """The plain mean over the members of each tensor, in its own type."""
    one = hlo.scalar(1.0, ir.F32Type.get())
    pairs = zip(weighted_mean(found, one, over=over), found, strict=True)
    return [hlo.convert(mean, hlo.element_type(x)) for mean, x in pairs]


# --- what the op names ---


def _parts(module: ir.Module, op: ir.Operation) -> Parts:
    grad, optimizer = (_function(module, op, key) for key in ("grad", "optimizer"))
    kept = functions.function_type(optimizer)
    count = len(kept.inputs) - len(kept.results)
    parts = Parts(grad, optimizer, _parameters(op, grad, count))
    _check(op, parts)
    return parts


def _function(module: ir.Module, op: ir.Operation, key: str) -> ir.Operation:
    name = symbol(op, key)
    if (found := functions.find(module, name)) is not None:
        return found
    named = {
        functions.symbol_name(other): other.operation.name
        for other in module.body.operations
        if "sym_name" in other.attributes
    }
    if named.get(name) == "pcp.grad":
        refuse(op, f"@{name} is declared by a pcp.grad; run pcp-grad before")
    refuse(op, f"no function @{name} with a body." + nearest(name, named))


def _parameters(op: ir.Operation, grad: ir.Operation, count: int) -> list[int]:
    """Which arguments are the parameters, in the order of the gradients."""
    if "wrt" in op.attributes:
        wrt = integers(op, "wrt")
    else:
        said = functions.argument_attributes(grad)
        roles = [functions.string(each, functions.ROLE) for each in said]
        wrt = [i for i, role in enumerate(roles) if role == "param"]
    if count < 1 or len(wrt) != count:
        refuse(
            op,
            f"@{functions.symbol_name(grad)} has {len(wrt)} parameters, and the "
            f"optimizer updates {max(count, 0)}; say which arguments are parameters "
            'with wrt = [...], or with {pcp.role = "param"} on them',
        )
    return wrt


def _check(op: ir.Operation, parts: Parts) -> None:
    """The optimizer takes what the gradient function has and gives."""
    given = functions.function_type(parts.grad)
    kept = functions.function_type(parts.optimizer)
    if any(i >= len(given.inputs) for i in parts.wrt) or parts.values < 0:
        refuse(op, f"wrt is {list(parts.wrt)}, and the gradient function is {given}")
    params = [given.inputs[i] for i in parts.wrt]
    state = list(kept.inputs)[2 * len(params) :]
    takes = [*params, *list(given.results)[parts.values :], *state]
    if list(kept.inputs) != takes or list(kept.results) != [*params, *state]:
        wanted = ir.FunctionType.get(takes, [*params, *state], context=op.context)
        refuse(op, f"the optimizer is {kept}; behind this gradient it is {wanted}")


def _over(module: ir.Module, op: ir.Operation) -> Over | None:
    """The members that the plan has gradients averaged over."""
    plan: Any = {entry.name: entry.attr for entry in ir.DictAttr(op.attributes["plan"])}
    for key in plan.keys() & PASSES.keys():
        refuse(op, f"{key} is a plan for whole programs: leave it to {PASSES[key]}")
    if "mesh" not in plan:
        return None
    if not isinstance(plan["mesh"], ir.FlatSymbolRefAttr):
        refuse(op, f"the plan's mesh is a symbol such as @name, not {plan['mesh']}")
    name = ir.FlatSymbolRefAttr(plan["mesh"]).value
    for view in module.body.operations:
        found = view.operation
        if found.name == "pcp.mesh" and functions.symbol_name(found) == name:
            return Over(name, tuple(axis_sizes(found.attributes["axes"])))
    refuse(op, f"there is no pcp.mesh @{name}")
