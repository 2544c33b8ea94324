"""One call that JAX has a derivative rule for, and what it makes of the call alone.

`jax.jvp` of it is the jvp function; `jax.vjp` of it is the forward function, and what
that returns besides the values, taken apart as a tree, are the residuals of the
backward function.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

#: JAX's primitives whose derivative is not that of what they compute, and the modes
#: that it is kept for. Users' own functions; equations that are solved, and linear
#: maps with a transpose of their own, whose jvp is by calls of themselves, so that it
#: takes a vjp too; samples by rejection (implicit differentiation); series that are
#: summed until the value stands, which says nothing of the derivative.
OWN: dict[str, tuple[str, ...]] = {
    "custom_jvp_call": ("jvp",),
    "custom_vjp_call": ("vjp",),
    "custom_linear_solve": ("jvp", "vjp"),
    "linear_call": ("jvp", "vjp"),
    "random_gamma": ("jvp",),
    "igamma": ("jvp",),
    "igammac": ("jvp",),
}


Function = Callable[..., list[Any]]
Rule = dict[str, Any]


@dataclass(frozen=True)
class JaxCall:
    """One call that has a rule: what it runs, and on what.

    `alone` is the call as a function of its operands, of which the first `closed` have
    no derivative by the rule; `own` says that it is a primitive of JAX's own,
    `untransposed` that its vjp rule lacks what JAX needs for it, and `written` that it
    runs a function of `pcp.frontends.linalg`.
    """

    name: str
    modes: tuple[str, ...]
    body: Any
    alone: Function
    avals: list[Any]
    closed: int
    own: bool
    untransposed: bool
    written: bool

    @classmethod
    def of(cls, ctx: Any, params: dict[str, Any]) -> "JaxCall":
        """The call that JAX is lowering."""
        import jax

        from pcp.frontends.linalg.primitives import FACTORIZATIONS, factorize

        primitive, avals = ctx.primitive, list(ctx.avals_in)
        written = primitive.name in FACTORIZATIONS

        def alone(*xs: Any) -> list[Any]:
            found = primitive.bind(*xs, **primitive.get_bind_params(params))
            return found if primitive.multiple_results else [found]

        modes = OWN.get(primitive.name, ("jvp",))
        closed = _closed(primitive.name, params)
        if "call_jaxpr" in params:  # a function of the user's, with the user's name
            body = params["call_jaxpr"]
            name = _symbol(body.jaxpr.debug_info.func_name)
        else:
            run = partial(factorize, primitive.name, **params) if written else alone
            body, name = jax.make_jaxpr(run)(*avals), _symbol(primitive.name)
        own = "call_jaxpr" not in params
        solve = params["jaxprs"] if primitive.name == "custom_linear_solve" else None
        untransposed = solve is not None and solve.transpose_solve is None
        return cls(name, modes, body, alone, avals, closed, own, untransposed, written)

    def trace(self) -> Rule:
        """The parts of the rule by mode and role: `jvp.jvp`, `vjp.backward`.

        None for those forms of a factorization that JAX has no derivative of; what
        is differentiated through one is refused (`autodiff/rules/calls.py`).
        """
        try:
            return {
                f"{mode}.{role}": part
                for mode in self.modes
                for role, part in _TRACES[mode](self).items()
            }
        except NotImplementedError:
            if self.written:
                return {}
            raise

    def emit(self, ctx: Any) -> Any:
        """A private function of what the call runs.

        What a primitive of JAX's runs is lowered without rules: nobody differentiates
        it. JAX keeps what it has lowered, so that has caches of its own: its derivative
        rule holds the same equations, and there they have rules.
        """
        module = ctx.module_context
        if self.own:
            module = module.replace(
                lowering_parameters=lowering(factorizations=None),
                lowering_cache={},
                cached_primitive_lowerings={},
            )
        return emit(module, self.name, self.body)


def _closed(primitive: str, params: dict[str, Any]) -> int:
    """How many operands the rule says nothing of; they come first."""
    if primitive == "custom_vjp_call":  # what the function is closed over
        return params["num_consts"]
    if primitive == "linear_call":  # it is not linear in these
        return params["num_callee_consts"] + params["num_res"]
    return 0


def lowering(factorizations: Any, others: Sequence[tuple[Any, Any]] = ()) -> Any:
    """Parameters for JAX to lower by, whatever machine it runs on.

    `factorizations` is a rule for those of matrices; without, they are written out
    where they stand. `others` are primitives with a rule each.
    """
    from jax.interpreters import mlir

    from pcp.frontends import jax_random
    from pcp.frontends.linalg import primitives as linalg

    rule = factorizations or linalg.inlined
    rules = [
        *linalg.operations(),
        *((p, rule) for p in linalg.factorizations()),
        *((p, linalg.refuse) for p in linalg.refused()),
        *jax_random.rules(),
        *others,
    ]
    # jax declares a tuple of one; it reads as many as there are
    found: Any = tuple(rules)
    return mlir.LoweringParameters(override_lowering_rules=found)


def primitives() -> list[Any]:
    """JAX's primitives of the names in `OWN`."""
    import jax
    from jax.extend import core

    linear = jax.custom_derivatives.linear_call
    traced = jax.make_jaxpr(lambda x: linear(_second, _second, (), x))(0.0)
    known = core.primitives
    return [
        known.custom_jvp_call_p,
        known.custom_vjp_call_p,
        known.linear_solve_p,
        known.random_gamma_p,
        known.igamma_p,
        known.igammac_p,
        traced.eqns[0].primitive,  # it has no public name
    ]


def _second(_: Any, x: Any) -> Any:
    return x


def _symbol(given: str) -> str:
    """A name made a symbol."""
    return re.sub(r"\W+", "_", given).strip("_") or "function"


def emit(module: Any, name: str, jaxpr: Any) -> Any:
    """A private function of what a jaxpr says, in a module that JAX is making."""
    from jax.interpreters import mlir

    return mlir.lower_jaxpr_to_fun(
        module, name, jaxpr, [], num_const_args=0, in_avals=jaxpr.in_avals
    )


def _trace_jvp(call: JaxCall) -> Rule:
    """Tangents that the rule says nothing of are zero: others are refused."""
    import jax

    avals, count = call.avals, call.closed
    given = [a for a in avals if is_float(a)]

    def jvp(*operands: Any) -> list[Any]:
        xs, tangents = operands[: len(avals)], iter(operands[len(avals) :])
        all_ = [next(tangents) if is_float(x) else _no_tangent(x) for x in avals]
        closed, xs = xs[:count], xs[count:]
        values, derived = jax.jvp(
            lambda *xs: call.alone(*closed, *xs), xs, tuple(all_[count:])
        )
        return [*values, *_floats(values, derived)]

    return {"jvp": jax.make_jaxpr(jvp)(*avals, *given)}


def _trace_vjp(call: JaxCall) -> Rule:
    """The rule says nothing of what the function is closed over, which comes first.

    Its cotangents are zeros that nobody sees: a derivative by it is refused.
    """
    import jax
    from jax import numpy as jnp

    avals, count, trees = call.avals, call.closed, []

    def forward(*xs: Any) -> tuple[list[Any], list[Any]]:
        closed, xs = xs[:count], xs[count:]
        values, pullback = jax.vjp(lambda *xs: call.alone(*closed, *xs), *xs)
        residuals, tree = jax.tree.flatten(pullback)
        trees.append(tree)
        return values, residuals

    jaxpr, (values, residuals) = jax.make_jaxpr(forward, return_shape=True)(*avals)

    def backward(*operands: Any) -> list[Any]:
        saved, given = operands[: len(residuals)], iter(operands[len(residuals) :])
        all_ = [next(given) if is_float(v) else _no_tangent(v) for v in values]
        cotangents = jax.tree.unflatten(trees[-1], saved)(all_)
        closed = [jnp.zeros(a.shape, a.dtype) for a in avals[:count]]
        return _floats(avals, [*closed, *cotangents])

    given = [v for v in values if is_float(v)]
    return {"forward": jaxpr, "backward": jax.make_jaxpr(backward)(*residuals, *given)}


_TRACES = {"jvp": _trace_jvp, "vjp": _trace_vjp}


def is_float(value: Any) -> bool:
    from jax import numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _floats(values: Sequence[Any], derived: Sequence[Any]) -> list[Any]:
    """The derived of those values that have any."""
    pairs = zip(values, derived, strict=True)
    return [d for v, d in pairs if is_float(v)]


def _no_tangent(value: Any) -> np.ndarray:
    """What JAX has for the tangent of an integer."""
    from jax import dtypes

    return np.zeros(value.shape, dtypes.float0)
