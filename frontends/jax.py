"""JAX functions as programs: `from_jax(fn, *args)`.

The arguments of `@main` are the leaves of `args` in JAX's order. The first
argument of `fn` holds the parameters, the others the data; a leaf is named by
its path, `params.layers.0.w` for `fn(params, ...)` and
`params["layers"][0]["w"]`.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.context import parse
from pcp.errors import IRError, UsageError
from pcp.frontends.signature import Argument, annotate, describe_init, entry

_SHARDING = re.compile(r"\bsdy\.\w+|\bmhlo\.sharding|@Sharding\b")
_PARTITIONS = re.compile(r"mhlo\.num_(?:partitions|replicas) = (\d+)")


def from_jax(
    fn: Callable[..., Any], *args: Any, params: Collection[int] = (0,)
) -> ir.Module:
    """Trace `fn(*args)` into a module whose `@main` takes the leaves of `args`.

    Leaves are arrays, numbers, or `jax.ShapeDtypeStruct`s, whose values are not
    known and which get no `pcp.init`. `params` are the positions of arguments
    that hold parameters. A function with shardings is an `IRError`: devices are
    pcp's to choose.
    """
    jax = _jax()
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn, keep_unused=True)
    text = jitted.lower(*args).as_text(debug_info=True)
    _refuse_sharding(text, _name(fn))
    module = parse(text, source=_name(fn))
    _inline(module)
    leaves = list(_leaves(jax, fn, args))
    _check_unused(module, len(leaves), _name(fn))
    annotate(module, [_argument(*leaf, frozenset(params)) for leaf in leaves])
    return module


def weights_of(
    fn: Callable[..., Any], *args: Any, params: Collection[int] = (0,)
) -> dict[str, np.ndarray]:
    """Name -> value of each parameter leaf among `args`, as `from_jax` names it."""
    return {
        name: np.asarray(value)
        for position, name, value in _leaves(_jax(), fn, args)
        if position in params and _is_concrete(value) and _is_float(value)
    }


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise UsageError(
            "exporting a JAX function needs jax: pip install 'pcp[jax]'"
        ) from error
    return jax


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _refuse_sharding(text: str, name: str) -> None:
    many = any(int(count) > 1 for count in _PARTITIONS.findall(text))
    found = _SHARDING.search(text)
    if found or many:
        what = found.group() if found else "more than one partition"
        raise IRError(
            f"{name}: the JAX program is sharded ({what}); pass unsharded arrays "
            "and no in_shardings: pcp places programs on devices itself"
        )


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
