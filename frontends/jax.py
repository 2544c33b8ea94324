"""JAX functions as programs: `from_jax(fn, *args)`.

The arguments of `@main` are the leaves of `args` in JAX's order. The first
argument of `fn` holds the parameters, the others the data; a leaf is named by
its path, `params.layers.0.w` for `fn(params, ...)` and
`params["layers"][0]["w"]`. State, frozen tensors, a key and metrics are what the caller
says (`jax_signature`). Derivatives are JAX's: functions keep the rules that they
were given, and what is stopped stays so (see `jax_rules`).
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.context import parse
from pcp.errors import IRError, MissingPackage, install
from pcp.frontends import jax_rules, jax_sharding
from pcp.frontends.jax_signature import Roles, is_concrete, is_float, key_text, name_of
from pcp.frontends.signature import (
    add_evaluation,
    annotate,
    annotate_results,
    declare_averages,
    entry,
)


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    params: Collection[int] = (0,),
    state: Collection[int] = (),
    frozen: Collection[int] = (),
    key: int | None = None,
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
    evaluate: Callable[..., Any] | None = None,
    rules: bool = True,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> ir.Module:
    """Trace `fn(*args)` into a module whose `@main` takes the leaves of `args`.

    Leaves are arrays, numbers, or `jax.ShapeDtypeStruct`s, whose values are not
    known and which get no `pcp.init`. `params` are the positions of arguments
    that hold parameters, `frozen` of those that are read only, `key` that of a key of
    `jax.random`. With `has_aux` the function returns the loss and a tree of scalars,
    the metrics. `state` are the positions of what it writes: it then returns the loss
    and the new state (a tuple of several), with `has_aux` the loss and a pair of the
    new state and the metrics. `average` says by patterns of names what becomes of state
    when workers meet, where it is not the mean of floats and the maximum of integers.

    `evaluate` is what validation calls in the place of `fn`: a function of the same
    arguments that returns what `fn` does, as `lambda p, x, key: fn(p, x, None)`; new
    state that it returns is dropped. Left out, validation calls `fn`.

    Shardings are `jax.jit`'s, here or in a function that is jitted already; they and
    those inside become annotations of the module (see `jax_sharding`).

    With `rules` a function inside that has a `jax.custom_vjp` or `jax.custom_jvp`, or
    whose derivative JAX knows by other means (`jax_calls.OWN`), becomes a composite
    with a `pcp.custom_vjp` or `pcp.custom_jvp`; without, which is meant for inference,
    it is differentiated as it is written. `jax.lax.stop_gradient` becomes
    `pcp.stop_gradient` either way.
    """
    jax = _jax()
    roles = Roles(params, state, frozen, key, has_aux)
    roles.check(len(args))
    asked = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    leaves = list(_leaves(jax, fn, args))

    def program(traced_: Callable[..., Any], context: ir.Context | None) -> ir.Module:
        jitted = jax_sharding.jitted(jax, traced_, asked)
        text = _lower(jitted, args, name_of(traced_), rules)
        module = parse(text, context, source=name_of(traced_))
        shardings = jax_sharding.Ports.of(module)
        jax_rules.attach(module)
        _inline(module)
        with module.context:
            jax_rules.attach_stops(module)
        _check_unused(module, len(leaves), name_of(traced_))
        annotate(module, [roles.argument(*leaf) for leaf in leaves])
        shardings.put_back(module)
        if results := roles.results(jax, traced_, args, leaves):
            annotate_results(module, results)
        return module

    module = program(fn, None)
    if evaluate is not None:
        add_evaluation(module, program(evaluate, module.context))
    declare_averages(module, average or {})
    return module


def weights_of(
    fn: Callable[..., Any], *args: Any, params: Collection[int] = (0,)
) -> dict[str, np.ndarray]:
    """Name -> value of each parameter leaf among `args`, as `from_jax` names it."""
    found = values_of(fn, *args, params=params)
    return {name: value for name, value in found.items() if is_float(value)}


def traced(jitted: Any, args: tuple[Any, ...], name: str) -> ir.Module:
    """A jitted function that is not differentiated, as a `@main` without calls."""
    module = parse(_lower(jitted, args, name, False), source=name)
    _inline(module)
    return module


def path_of(path: Any) -> str:
    """A leaf's path in a tree, as names have it: `layers.0.w`."""
    return ".".join(map(key_text, path))


def values_of(
    fn: Callable[..., Any], *args: Any, params: Collection[int] = (0,)
) -> dict[str, np.ndarray]:
    """As `weights_of`, with leaves that are not floats; `params` may be of any role."""
    Roles(params).check(len(args))
    return {
        name: np.asarray(value)
        for position, name, value in _leaves(_jax(), fn, args)
        if position in params and is_concrete(value)
    }


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingPackage(
            f"exporting a JAX function needs jax: {install('jax')}"
        ) from error
    return jax


def _lower(jitted: Any, args: tuple[Any, ...], name: str, rules: bool) -> str:
    parameters = jax_rules.JaxRules(name, kept=rules).parameters()
    # For one platform, whichever it is: the program is not for the machine that traces.
    lowered = jitted.trace(*args).lower(
        lowering_platforms=("cpu",), _private_parameters=parameters
    )
    return jax_sharding.text_of(lowered, name)


def _inline(module: ir.Module) -> None:
    """One function: JAX keeps `jax.nn.relu` and its like as calls."""
    with module.context:
        manager = PassManager.parse("builtin.module(inline,symbol-dce,cse)")
        manager.run(module.operation)
    op = entry(module)
    for name in ("res_attrs", "sym_visibility"):
        if name in op.attributes:
            del op.attributes[name]
    for name in [*module.operation.attributes]:
        if name.startswith("mhlo."):
            del module.operation.attributes[name]


def _leaves(
    jax: Any, fn: Callable[..., Any], args: tuple[Any, ...]
) -> Iterator[tuple[int, str, Any]]:
    """(position of the argument, path, value) of each leaf, in `@main`'s order."""
    for position, (root, value) in enumerate(
        zip(_roots(fn, len(args)), args, strict=True)
    ):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield position, ".".join([root, *map(key_text, path)]), leaf


def _roots(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` arguments; `arg<i>` where there are none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL][:count]
    return named + [f"arg{i}" for i in range(len(named), count)]


def _check_unused(module: ir.Module, leaves: int, name: str) -> None:
    count = len(entry(module).regions[0].blocks[0].arguments)
    if count != leaves:
        raise IRError(
            f"{name}: jax.jit dropped {leaves - count} unused of {leaves} arguments; "
            "pass the plain function, or jit it with keep_unused=True"
        )
