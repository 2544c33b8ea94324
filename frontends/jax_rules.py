"""Derivative rules of JAX functions: `jax.custom_vjp` and `jax.custom_jvp`.

JAX drops them where it lowers a function. Here its lowering of the two calls is
replaced: a call becomes a composite, whose decomposition is the function itself, and
the rule becomes private functions next to it. JAX still walks the program, so a call
is found wherever it stands: in a scan, a branch, under vmap, in another rule.

The rule's functions are what JAX makes of the call alone: `jax.jvp` of it is the jvp
function; `jax.vjp` of it is the forward function, and what that returns besides the
values, taken apart as a tree, are the residuals of the backward function.

`jax.checkpoint` needs nothing here: what is kept and what is run again is decided in
`pcp-remat`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcp.dialect.bindings import ir
from pcp.errors import IRError

#: Attributes of a function while JAX lowers: its rule's functions by role.
MARKS = {
    "pcp.custom_jvp": ("jvp",),
    "pcp.custom_vjp": ("forward", "backward"),
}

#: Rules within rules. A rule that calls its own function is found again, so that only
#: families of functions, f' = g, g' = h, ..., come here: beyond this order of
#: derivative a function of the family is differentiated as it is written.
DEPTH = 8

Function = Callable[..., list[Any]]
Rule = dict[str, Any]


@dataclass
class Rules:
    """The rules of one program; `parameters` are for JAX's `Traced.lower`."""

    source: str
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    depth: int = 0

    def parameters(self) -> Any:
        """Lowers the calls that have rules by `_lower`."""
        from jax.extend import core
        from jax.interpreters import mlir

        primitives = core.primitives
        lowerings: Any = (  # jax declares a tuple of one; it reads as many as there are
            (primitives.custom_jvp_call_p, self._lowering("jvp")),
            (primitives.custom_vjp_call_p, self._lowering("vjp")),
        )
        return mlir.LoweringParameters(override_lowering_rules=lowerings)

    def _lowering(self, kind: str) -> Callable[..., Any]:
        def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
            return self._lower(kind, ctx, operands, params)

        return lower

    def _lower(
        self, kind: str, ctx: Any, operands: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        from jax.extend.mlir.dialects import stablehlo

        name = _name(params)
        body = params["call_jaxpr"]
        if body.effects:
            raise IRError(
                f"{self.source}: {name} has a derivative rule and an effect "
                f"({next(iter(body.effects))}); take the effect out of it"
            )
        function = self._function(kind, name, ctx, params)
        call = stablehlo.CompositeOp(
            function.type.results,
            list(operands),
            name=f"jax.{name}",
            decomposition=_reference(function),
        )
        return call.results

    def _function(self, kind: str, name: str, ctx: Any, params: dict[str, Any]) -> Any:
        """The call's function, which has its rule when it is lowered."""
        body = params["call_jaxpr"]
        rule = self._trace(kind, name, ctx, params) if self.depth < DEPTH else {}
        self._refuse_closures(name, rule)
        key = (kind, name, _text(body), *(_text(part) for part in rule.values()))
        if key in self.known:
            return self.known[key]
        function = _emit(ctx, name, body)
        self.known[key] = function
        self.depth += 1
        try:
            for role, part in rule.items():
                part = _emit(ctx, f"{name}_{role}", part)
                function.attributes[f"pcp.custom_{kind}.{role}"] = _reference(part)
        finally:
            self.depth -= 1
        return function

    def _trace(self, kind: str, name: str, ctx: Any, params: dict[str, Any]) -> Rule:
        try:
            return _TRACES[kind](ctx.primitive, params, list(ctx.avals_in))
        except Exception as error:
            raise IRError(
                f"{self.source}: the derivative rule of {name} cannot be traced: "
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


def attach(module: ir.Module) -> None:
    """Turn the marks on functions into `pcp.custom_jvp` and `pcp.custom_vjp` ops."""
    for view in list(module.body.operations):
        function = view.operation
        for op, roles in MARKS.items():
            if f"{op}.{roles[0]}" in function.attributes:
                _attach(function, op, roles)


def _attach(function: ir.Operation, op: str, roles: Sequence[str]) -> None:
    names = {role: function.attributes[f"{op}.{role}"] for role in roles}
    for role in roles:
        del function.attributes[f"{op}.{role}"]
    primal = ir.StringAttr(function.attributes["sym_name"]).value
    with function.context, ir.InsertionPoint.after(function):
        ir.Operation.create(
            op,
            attributes={"primal": ir.FlatSymbolRefAttr.get(primal), **names},
            loc=function.location,
        )


def _reference(function: Any) -> Any:
    """A symbol reference to a function, in JAX's own build of MLIR."""
    from jax.interpreters import mlir

    return mlir.ir.FlatSymbolRefAttr.get(function.name.value)


def _name(params: dict[str, Any]) -> str:
    """The user's name for a function, made a symbol."""
    given = params["call_jaxpr"].jaxpr.debug_info.func_name
    return re.sub(r"\W+", "_", given).strip("_") or "function"


def _text(jaxpr: Any) -> tuple[Any, ...]:
    """What two jaxprs that compute the same have in common."""
    constants = tuple(
        (str(c.dtype), c.shape, c.tobytes()) for c in map(np.asarray, jaxpr.consts)
    )
    return str(jaxpr), constants


def _emit(ctx: Any, name: str, jaxpr: Any) -> Any:
    """A private function of what a jaxpr says."""
    from jax.interpreters import mlir

    return mlir.lower_jaxpr_to_fun(
        ctx.module_context, name, jaxpr, [], num_const_args=0, in_avals=jaxpr.in_avals
    )


# --- what JAX makes of one call ---


def _call(primitive: Any, params: dict[str, Any]) -> Function:
    """The call alone, as a function of its operands."""
    return lambda *xs: primitive.bind(*xs, **primitive.get_bind_params(params))


def _trace_jvp(primitive: Any, params: dict[str, Any], avals: list[Any]) -> Rule:
    import jax

    call, given = _call(primitive, params), [a for a in avals if _is_float(a)]

    def jvp(*operands: Any) -> list[Any]:
        xs, tangents = operands[: len(avals)], iter(operands[len(avals) :])
        all_ = [next(tangents) if _is_float(x) else _no_tangent(x) for x in avals]
        values, derived = jax.jvp(call, xs, tuple(all_))
        return [*values, *_floats(values, derived)]

    return {"jvp": jax.make_jaxpr(jvp)(*avals, *given)}


def _trace_vjp(primitive: Any, params: dict[str, Any], avals: list[Any]) -> Rule:
    """The rule says nothing of what the function is closed over, which comes first.

    JAX refuses to differentiate by that. Here it is not known yet who will: its
    cotangents are NaN, which nobody sees who does not ask for them.
    """
    import jax
    from jax import numpy as jnp

    call, trees, count = _call(primitive, params), [], params["num_consts"]

    def forward(*xs: Any) -> tuple[list[Any], list[Any]]:
        closed, xs = xs[:count], xs[count:]
        values, pullback = jax.vjp(lambda *xs: call(*closed, *xs), *xs)
        residuals, tree = jax.tree.flatten(pullback)
        trees.append(tree)
        return values, residuals

    jaxpr, (values, residuals) = jax.make_jaxpr(forward, return_shape=True)(*avals)

    def backward(*operands: Any) -> list[Any]:
        saved, given = operands[: len(residuals)], iter(operands[len(residuals) :])
        all_ = [next(given) if _is_float(v) else _no_tangent(v) for v in values]
        cotangents = jax.tree.unflatten(trees[-1], saved)(all_)
        closed = [jnp.full(a.shape, _nan(a), a.dtype) for a in avals[:count]]
        return _floats(avals, [*closed, *cotangents])

    given = [v for v in values if _is_float(v)]
    return {"forward": jaxpr, "backward": jax.make_jaxpr(backward)(*residuals, *given)}


_TRACES = {"jvp": _trace_jvp, "vjp": _trace_vjp}


def _is_float(value: Any) -> bool:
    from jax import numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _floats(values: Sequence[Any], derived: Sequence[Any]) -> list[Any]:
    pairs = zip(values, derived, strict=True)
    return [d for v, d in pairs if _is_float(v)]


def _nan(value: Any) -> float:
    return float("nan") if _is_float(value) else 0.0


def _no_tangent(value: Any) -> np.ndarray:
    """What JAX has for the tangent of an integer."""
    from jax import dtypes

    return np.zeros(value.shape, dtypes.float0)
