"""JAX functions as programs: `from_jax(fn, *args)`.

The arguments of `@main` are the leaves of `args` in JAX's order. The first
argument of `fn` holds the parameters, the others the data; a leaf is named by
its path, `params.layers.0.w` for `fn(params, ...)` and
`params["layers"][0]["w"]`. Derivatives are JAX's: functions keep the rules that they
were given, and what is stopped stays so (see `jax_rules`).
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.context import parse
from pcp.errors import IRError, MissingPackage, UsageError, install
from pcp.frontends import jax_rules, jax_sharding
from pcp.frontends.signature import Argument, annotate, describe_init, entry


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    params: Collection[int] = (0,),
    rules: bool = True,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> ir.Module:
    """Trace `fn(*args)` into a module whose `@main` takes the leaves of `args`.

    Leaves are arrays, numbers, or `jax.ShapeDtypeStruct`s, whose values are not
    known and which get no `pcp.init`. `params` are the positions of arguments
    that hold parameters.

    Shardings are `jax.jit`'s, here or in a function that is jitted already; they and
    those inside become annotations of the module (see `jax_sharding`).

    With `rules` a function inside that has a `jax.custom_vjp` or `jax.custom_jvp`, or
    whose derivative JAX knows by other means (`jax_calls.OWN`), becomes a composite
    with a `pcp.custom_vjp` or `pcp.custom_jvp`; without, which is meant for inference,
    it is differentiated as it is written. `jax.lax.stop_gradient` becomes
    `pcp.stop_gradient` either way.
    """
    jax = _jax()
    _check_positions(params, len(args))
    asked = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    jitted = jax_sharding.jitted(jax, fn, asked)
    text = _lower(jitted, args, _name(fn), rules)
    module = parse(text, source=_name(fn))
    shardings = jax_sharding.Ports.of(module)
    jax_rules.attach(module)
    _inline(module)
    with module.context:
        jax_rules.attach_stops(module)
    leaves = list(_leaves(jax, fn, args))
    _check_unused(module, len(leaves), _name(fn))
    annotate(module, [_argument(*leaf, frozenset(params)) for leaf in leaves])
    shardings.put_back(module)
    return module


def weights_of(
    fn: Callable[..., Any], *args: Any, params: Collection[int] = (0,)
) -> dict[str, np.ndarray]:
    """Name -> value of each parameter leaf among `args`, as `from_jax` names it."""
    _check_positions(params, len(args))
    return {
        name: np.asarray(value)
        for position, name, value in _leaves(_jax(), fn, args)
        if position in params and _is_concrete(value) and _is_float(value)
    }


def traced(jitted: Any, args: tuple[Any, ...], name: str) -> ir.Module:
    """A jitted function that is not differentiated, as a `@main` without calls."""
    module = parse(_lower(jitted, args, name, False), source=name)
    _inline(module)
    return module


def path_of(path: Any) -> str:
    """A leaf's path in a tree, as names have it: `layers.0.w`."""
    return ".".join(map(_key, path))


def _check_positions(params: Collection[int], count: int) -> None:
    if beyond := sorted(set(params) - {0, *range(count)}):  # 0 is the default
        raise UsageError(
            f"params={sorted(params)}: there is no argument {beyond[0]}; "
            f"{count} are given, 0 to {count - 1}"
        )


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingPackage(
            f"exporting a JAX function needs jax: {install('jax')}"
        ) from error
    return jax


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


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
            yield position, ".".join([root, *map(_key, path)]), leaf


def _roots(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` arguments; `arg<i>` where there are none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL][:count]
    return named + [f"arg{i}" for i in range(len(named), count)]


def _key(entry_: Any) -> str:
    """One step of a path: a dict key, an index, or a field's name."""
    for field in ("key", "idx", "name"):
        if hasattr(entry_, field):
            return str(getattr(entry_, field))
    return str(entry_)


def _check_unused(module: ir.Module, leaves: int, name: str) -> None:
    count = len(entry(module).regions[0].blocks[0].arguments)
    if count != leaves:
        raise IRError(
            f"{name}: jax.jit dropped {leaves - count} unused of {leaves} arguments; "
            "pass the plain function, or jit it with keep_unused=True"
        )


def _argument(position: int, name: str, value: Any, params: frozenset[int]) -> Argument:
    if position not in params:
        return Argument(name, "data")
    if not _is_float(value):
        return Argument(name, "state")
    init = describe_init(np.asarray(value)) if _is_concrete(value) else None
    return Argument(name, "param", init)


def _is_concrete(value: Any) -> bool:
    return type(value).__name__ != "ShapeDtypeStruct"


def _is_float(value: Any) -> bool:
    if _is_concrete(value):
        value = np.asarray(value)
    # bfloat16 and the small floats are of kind "V" in numpy.
    return np.dtype(value.dtype).kind not in "biu"
