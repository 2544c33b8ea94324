"""Models of JAX's libraries as programs: `from_jax` with the split that each has.

    flax linen   variables: the collection "params", those in `mutable`, the others
    flax nnx     nnx.Param, nnx.RngState, other variables
    equinox      inexact arrays, other arrays, everything else; `eqx.nn.State`
    haiku        params; the state of transform_with_state

The loss is a function of the model and the data, `loss(model, x, y)`, as one writes it
for the library's own optimizers; what it calls is the model with the program's tensors
in it. Parameters are named behind `params.`, what the model writes behind `state.`,
what it only reads behind `frozen.`; random numbers follow from the program's key.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.dialect.bindings import ir
from pcp.errors import IRError, MissingPackage, UsageError, install
from pcp.frontends.jax import from_jax

Loss = Callable[..., Any]
"""(the model, its data) -> the loss, or with `has_aux` a pair of it and metrics."""

Run = Callable[[Any, Any, Any, Any, Sequence[Any]], tuple[Any, Any]]
"""(params, state, frozen, key, data) -> what the loss returns, and the new state."""

KEY = "rng"


@dataclass(frozen=True)
class Options:
    """What `from_jax` is told beside the split."""

    has_aux: bool = False
    average: Mapping[str, str] | None = None


def from_flax(
    model: Any,
    variables: Mapping[str, Any],
    loss: Loss,
    data: Sequence[Any],
    options: Options,
    *,
    mutable: Collection[str] = (),
    rngs: Collection[str] = (),
) -> ir.Module:
    """See `pcp.from_flax`."""
    if "params" not in variables:
        raise UsageError(
            f"variables has no 'params' (it has: {', '.join(variables)}); give what "
            "model.init returned"
        )
    if unknown := sorted({*mutable} - {*variables}):
        raise UsageError(f"mutable={unknown[0]!r}: variables has no such collection")
    written = {name: variables[name] for name in mutable}
    others = {k: v for k, v in variables.items() if k not in ("params", *mutable)}

    def run(
        params: Any, state: Any, frozen: Any, key: Any, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        held = dict(state)
        keys = _keys(key, rngs)

        def apply(*args: Any, **keywords: Any) -> Any:
            now = {"params": params, **frozen, **held}
            called = {"rngs": keys, **keywords} if keys else keywords
            if not held:
                return model.apply(now, *args, **called)
            returned, new = model.apply(now, *args, mutable=[*held], **called)
            held.update(new)
            return returned

        return loss(apply, *given), held

    parts = _Parts(variables["params"], written, others, bool(rngs))
    return _traced(run, parts, loss, data, options)


def from_nnx(
    model: Any, loss: Loss, data: Sequence[Any], options: Options
) -> ir.Module:
    """See `pcp.from_nnx`."""
    try:
        from flax import nnx
    except ImportError as error:
        raise MissingPackage("a model of flax.nnx needs flax: pip install flax") from (
            error
        )
    split: Any = nnx.split
    graph, params, random, rest = split(model, nnx.Param, nnx.RngState, ...)
    streams = _streams(nnx, model)

    def run(
        new: Any, state: Any, _: Any, key: Any, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        parts = (_copy(params), new), (_copy(rest), state)
        for part, values in parts:
            nnx.replace_by_pure_dict(part, values)
        merged = nnx.merge(graph, parts[0][0], _copy(random), parts[1][0])
        if streams:
            nnx.reseed(merged, **_keys(key, streams))
        returned = loss(merged, *given)
        after = split(merged, nnx.Param, nnx.RngState, ...)[3]
        return returned, nnx.to_pure_dict(after)

    parts = _Parts(nnx.to_pure_dict(params), nnx.to_pure_dict(rest), {}, bool(streams))
    return _traced(run, parts, loss, data, options)


def from_equinox(
    model: Any,
    loss: Loss,
    data: Sequence[Any],
    options: Options,
    *,
    state: Any = None,
    key: bool = False,
) -> ir.Module:
    """See `pcp.from_equinox`."""
    try:
        import equinox as eqx
    except ImportError as error:
        raise MissingPackage(
            f"a model of equinox needs it: {install('jax')}"
        ) from error
    trained, rest = eqx.partition(model, eqx.is_inexact_array)
    arrays, static = eqx.partition(rest, eqx.is_array)

    def run(
        params: Any, held: Any, frozen: Any, drawn: Any, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        whole = eqx.combine(params, frozen, static)
        keywords = {"key": drawn} if key else {}
        if state is None:
            return loss(whole, *given, **keywords), ()
        returned = loss(whole, held, *given, **keywords)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise IRError("with state= the loss returns a pair: itself, the new state")
        return returned

    parts = _Parts(trained, () if state is None else state, arrays, key)
    return _traced(run, parts, loss, data, options, skipped=1 + (state is not None))


def from_haiku(
    model: Any,
    params: Any,
    loss: Loss,
    data: Sequence[Any],
    options: Options,
    *,
    state: Any = None,
    key: bool = False,
) -> ir.Module:
    """See `pcp.from_haiku`."""

    def run(
        new: Any, held: Any, _: Any, drawn: Any, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        now = held

        def apply(*args: Any, **keywords: Any) -> Any:
            nonlocal now
            if state is None:
                return model.apply(new, drawn, *args, **keywords)
            returned, now = model.apply(new, now, drawn, *args, **keywords)
            return returned

        returned = loss(apply, *given)
        return returned, now

    parts = _Parts(params, () if state is None else state, {}, key)
    return _traced(run, parts, loss, data, options)


# --- what they share ---


@dataclass(frozen=True)
class _Parts:
    """A model taken apart, and whether it draws random numbers."""

    params: Any
    state: Any
    frozen: Any
    draws: bool


def _traced(
    run: Run,
    parts: _Parts,
    loss: Loss,
    data: Sequence[Any],
    options: Options,
    skipped: int = 1,
) -> ir.Module:
    """`run` by `from_jax`; `skipped` arguments of the loss are no data."""
    jax = _jax()
    given = {"params": parts.params, "state": parts.state, "frozen": parts.frozen}
    if parts.draws:
        given[KEY] = jax.random.key_data(jax.random.key(0))
    tree = jax.tree_util.tree_leaves
    kept = {n: x for n, x in given.items() if n == "params" or tree(x)}
    place = {name: i for i, name in enumerate(kept)}

    def program(*args: Any) -> Any:
        held = {**given, **dict(zip(kept, args, strict=False))}
        key = jax.random.wrap_key_data(held[KEY]) if parts.draws else None
        returned, state = run(
            held["params"], held["state"], held["frozen"], key, args[len(kept) :]
        )
        return _result(returned, state, "state" in kept, options.has_aux)

    _name(program, loss, [*kept], skipped, len(data))
    return from_jax(
        program,
        *kept.values(),
        *data,
        params=(0,),
        state=[place["state"]] if "state" in place else (),
        frozen=[place["frozen"]] if "frozen" in place else (),
        key=place.get(KEY),
        has_aux=options.has_aux,
        average=options.average,
    )


def _result(returned: Any, state: Any, writes: bool, has_aux: bool) -> Any:
    """As `from_jax` reads it: the loss, beside it state and metrics."""
    if not writes:
        return returned
    if not has_aux:
        return returned, state
    value, metrics = returned
    return value, (state, metrics)


def _name(
    program: Any, loss: Loss, kept: Sequence[str], skipped: int, count: int
) -> None:
    """Give the program the loss's name, and its names of the data."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    told = [
        p.name
        for p in inspect.signature(loss).parameters.values()
        if p.kind in (kind, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ][skipped : skipped + count]
    names = [*kept, *told, *(f"data{i}" for i in range(len(told), count))]
    if twice := [name for name in told if name in kept]:
        raise UsageError(
            f"the loss calls its data {twice[0]!r}, which are the model's own in the "
            "program; name them otherwise"
        )
    program.__name__ = getattr(loss, "__name__", "loss")
    program.__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind) for name in names]
    )


def _keys(key: Any, names: Collection[str]) -> dict[str, Any]:
    """A key for each stream, of the program's."""
    if key is None:
        return {}
    fold = _jax().random.fold_in
    return {name: fold(key, i) for i, name in enumerate(sorted(names))}


def _streams(nnx: Any, model: Any) -> set[str]:
    """The names of the random streams in a model of nnx."""
    nodes = nnx.iter_graph(model)
    return {node.tag for _, node in nodes if isinstance(node, nnx.RngStream)}


def _copy(state: Any) -> Any:
    """A state of nnx whose variables belong to this trace."""
    return _jax().tree_util.tree_map(lambda x: x, state)


def _jax() -> Any:
    import jax

    return jax
