"""What JAX says of derivatives: rules of functions, and `jax.lax.stop_gradient`.

JAX drops them where it lowers a function. Here its lowering of what says them is
replaced. A stop becomes `pcp.stop_gradient`. A call with a rule of its own (see
`jax_calls.OWN`) becomes a composite, whose decomposition is the function itself, and
the rule becomes private functions next to it. JAX still walks the program, so they are
found wherever they stand: in a scan, a branch, under vmap, in another rule.

`jax.checkpoint` needs nothing here: what is kept and what is run again is decided in
`pcp-remat`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcp.dialect.bindings import ir
from pcp.dialect.derivatives import WITHOUT
from pcp.errors import IRError
from pcp.frontends.jax_calls import JaxCall, Rule, emit, is_float, lowering, primitives

#: Attributes of a function while JAX lowers: its rule's functions by role.
MARKS = {
    "pcp.custom_jvp": ("jvp",),
    "pcp.custom_vjp": ("forward", "backward"),
}

#: Rules within rules. A rule that calls its own function is found again, so that only
#: families of functions, f' = g, g' = h, ..., come here: beyond this order a function
#: of the family has no derivative.
DEPTH = 8

#: On such a function: which operands have no derivative, and why.

#: What a stop is while MLIR's inliner runs, which leaves functions with ops of pcp.
STOP = "pcp.stop_gradient"


@dataclass(frozen=True)
class Without:
    """The first `count` operands of a function have no derivative, and why.

    `linear` as in `pcp.without_derivative`.
    """

    count: int
    why: str
    linear: bool = False

    def attribute(self) -> Any:
        """For a function that JAX lowers."""
        from jax.interpreters.mlir import ir

        i64 = ir.IntegerType.get_signless(64)
        said = {
            "count": ir.IntegerAttr.get(i64, self.count),
            "why": ir.StringAttr.get(self.why),
        }
        linear = {"linear": ir.UnitAttr.get()} if self.linear else {}
        return ir.DictAttr.get({**said, **linear})


@dataclass
class JaxRules:
    """The rules of one program; `parameters` are for JAX's `Traced.lower`.

    Stops are kept whether rules are or not.
    """

    source: str
    kept: bool = True
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    depth: int = 0

    def parameters(self) -> Any:
        """Lowers stops by `_stop`, and the calls that have rules by `_lower`."""
        from jax.extend import core
        from jax.interpreters import mlir

        known = core.primitives
        log_sums = mlir.lower_fun(_log_sums, multiple_results=False)
        others: list[Any] = [
            (known.stop_gradient_p, _stop),
            (known.cumlogsumexp_p, log_sums),
        ]
        if self.kept:
            others += [(p, self._lower) for p in primitives()]
        return lowering(self._lower, others)

    def _lower(self, ctx: Any, *operands: Any, **params: Any) -> Any:
        from jax.extend.mlir.dialects import stablehlo

        call = JaxCall.of(ctx, params)
        if call.body.effects:
            raise IRError(
                f"{self.source}: {call.name} has a derivative rule and an effect "
                f"({next(iter(call.body.effects))}); take the effect out of it"
            )
        function = self._function(ctx, call)
        made = stablehlo.CompositeOp(
            function.type.results,
            list(operands),
            name=f"jax.{call.name}",
            decomposition=_reference(function),
        )
        return made.results

    def _function(self, ctx: Any, call: JaxCall) -> Any:
        """The call's function, which has its rule when it is lowered."""
        rule, without = self._rule(call) if self.kept else ({}, None)
        parts = (_text(part) for part in rule.values())
        key = (call.name, without, _text(call.body), *parts)
        if key in self.known:
            return self.known[key]
        function = call.emit(ctx)
        self.known[key] = function
        if without is not None:
            function.attributes[WITHOUT] = without.attribute()
        self.alive += [call, rule]  # keys hold addresses, which must not come again
        self.depth += 1
        try:
            for role, part in rule.items():
                name = f"{call.name}_{role.partition('.')[2]}"
                part = emit(ctx.module_context, name, part)
                function.attributes[f"pcp.custom_{role}"] = _reference(part)
        finally:
            self.depth -= 1
        return function

    def _rule(self, call: JaxCall) -> "tuple[Rule, Without | None]":
        """The call's own rule, and what has no derivative by it.

        Inside another rule a call may have none: `odeint` and `expn` have one of first
        order alone, and whether a second is asked for is not known yet.
        """
        none = f"rules within rules are kept to a depth of {DEPTH}"
        try:
            if self.depth < DEPTH:
                rule = self._trace(call)
                self._refuse_closures(call.name, rule)
                return rule, _closed_over(call) if rule and call.closed else None
        except IRError as error:
            if not self.depth:
                raise
            none = str(error).partition("\n")[0]
        if not call.avals:
            return {}, None
        return {}, Without(len(call.avals), none, linear=call.modes == ("jvp",))

    def _trace(self, call: JaxCall) -> Rule:
        if call.untransposed:
            raise IRError(
                f"{self.source}: {call.name} has no transpose_solve, so it has no "
                "derivative in reverse mode; give it one, or symmetric=True; "
                "rules=False exports the function as it computes, for inference"
            )
        try:
            return call.trace()
        except Exception as error:
            raise IRError(
                f"{self.source}: the derivative rule of {call.name} cannot be traced: "
                f"{error}; rules=False exports the function without such rules, "
                "for inference"
            ) from error

    def _refuse_closures(self, name: str, rule: Rule) -> None:
        """Only the function itself may use what is traced around it, as in JAX."""
        from jax import core

        for part in rule.values():
            if any(isinstance(c, core.Tracer) for c in part.consts):
                raise IRError(
                    f"{self.source}: the derivative rule of {name} uses a traced "
                    "value from around it; make it an argument of the function"
                )


def _closed_over(call: JaxCall) -> "Without":
    """What is said, as by JAX, of the operands that the rule is not for."""
    return Without(
        call.closed,
        "a linear_call has none by what it is not linear in, and a custom_vjp by what "
        "it is closed over; make that an argument of the function, or put "
        "jax.lax.stop_gradient on it",
    )


def _log_sums(x: Any, *, axis: int, reverse: bool) -> Any:
    """What JAX differentiates; its lowering is one op with a body that has no rule."""
    from jax import lax
    from jax import numpy as jnp

    return lax.associative_scan(jnp.logaddexp, x, axis=axis, reverse=reverse)


def _stop(ctx: Any, operand: Any) -> Any:
    """A call that `attach_stops` replaces; integers have no derivative to stop."""
    from jax.extend.mlir.dialects import stablehlo

    if not is_float(ctx.avals_in[0]):
        return [operand]
    return stablehlo.CustomCallOp(
        [operand.type], [operand], call_target_name=STOP, has_side_effect=False
    ).results


def attach_stops(module: ir.Module) -> None:
    """Turn the calls that stand for stops into `pcp.stop_gradient`."""
    calls: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        target = op.attributes.get("call_target_name")
        if op.name == "stablehlo.custom_call" and ir.StringAttr(target).value == STOP:
            calls.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for call in calls:
        with ir.InsertionPoint(call):
            made = ir.Operation.create(
                STOP,
                operands=list(call.operands),
                results=[call.results[0].type],
                loc=call.location,
            )
        call.results[0].replace_all_uses_with(made.results[0])
        call.erase()


def attach(module: ir.Module) -> None:
    """Turn the marks on functions into the ops of `pcp` that say the same."""
    for view in list(module.body.operations):
        function = view.operation
        for op, roles in MARKS.items():
            if f"{op}.{roles[0]}" in function.attributes:
                names = {r: _taken(function, f"{op}.{r}") for r in roles}
                _attach(function, op, names)
        if WITHOUT in function.attributes:
            said = ir.DictAttr(_taken(function, WITHOUT))
            _attach(function, WITHOUT, {entry.name: entry.attr for entry in said})


def _taken(function: ir.Operation, name: str) -> ir.Attribute:
    """An attribute, which is gone then."""
    value = function.attributes[name]
    del function.attributes[name]
    return value


def _attach(
    function: ir.Operation, op: str, attributes: dict[str, ir.Attribute]
) -> None:
    primal = ir.StringAttr(function.attributes["sym_name"]).value
    with function.context, ir.InsertionPoint.after(function):
        ir.Operation.create(
            op,
            attributes={"primal": ir.FlatSymbolRefAttr.get(primal), **attributes},
            loc=function.location,
        )


def _reference(function: Any) -> Any:
    """A symbol reference to a function, in JAX's own build of MLIR."""
    from jax.interpreters import mlir

    return mlir.ir.FlatSymbolRefAttr.get(function.name.value)


def _text(jaxpr: Any) -> tuple[Any, ...]:
    """What two jaxprs that compute the same have in common."""
    constants = tuple(
        (str(c.dtype), c.shape, c.tobytes()) for c in map(np.asarray, jaxpr.consts)
    )
    return str(jaxpr), constants
