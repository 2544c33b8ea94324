"""What a PyTorch model is called with and what of its returned value is the program's.

A call is positional and keyword arguments, nested in dicts, lists and tuples. Each
tensor becomes an argument of `@main`; numbers, texts and None are fixed at the trace.
Names are those that the caller sees:

    model(x)                          the parameter of forward: x
    model(input_ids=..., labels=...)  the keyword: input_ids, labels
    model({"image": ..., "label": ...})  the key: image, label
    model([a, b])                     parameter and position: x.0, x.1
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.errors import IRError, UsageError


@dataclass(frozen=True)
class Call:
    """The arguments of one call: its tensors with their names, and all leaves."""

    names: tuple[str, ...]
    tensors: tuple[Any, ...]
    leaves: tuple[Any, ...]
    """Tensors included; `spec` puts them together."""
    spec: Any

    def filled(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with these tensors in place of its own."""
        import torch
        from torch.utils._pytree import tree_unflatten

        rest = iter(tensors)
        filled = [
            next(rest) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in self.leaves
        ]
        return tree_unflatten(filled, self.spec)


def call_of(model: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """`model(*args, **keywords)` as a `Call`.

    An object that holds tensors where none is looked for is an `IRError`.
    """
    import torch
    from torch.utils._pytree import tree_flatten_with_path

    arguments = (tuple(map(_plain, args)), {k: _plain(v) for k, v in keywords.items()})
    found, spec = tree_flatten_with_path(arguments)
    roots = _roots(model, len(args))
    paths, tensors = [], []
    for path, leaf in found:
        steps = [*_steps(path, roots)]
        if isinstance(leaf, torch.Tensor):
            paths.append(steps)
            tensors.append(leaf)
        else:
            _check_leaf(torch, leaf, ".".join(steps))
    leaves = tuple(leaf for _, leaf in found)
    return Call(tuple(_names(paths)), tuple(tensors), leaves, spec)


def _plain(value: Any) -> Any:
    """A mapping of another kind (transformers' BatchEncoding) as a dict."""
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return dict(value)
    return value


def _roots(model: Any, count: int) -> list[str]:
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters.values()
    named = [
        p.name
        for p in parameters
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ][:count]
    return named + [f"input{i}" for i in range(len(named), count)]


def _steps(path: Any, roots: Sequence[str]) -> Iterator[str]:
    """The argument of the call, then the way inside it."""
    half, root, *rest = path
    yield str(root.key if half.idx else roots[root.idx])
    for step in rest:
        yield str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", ""))))


def _names(paths: Sequence[Sequence[str]]) -> list[str]:
    """Without the argument in front where a key says enough."""
    short = [".".join(p[1:] if len(p) > 1 and not p[1].isdigit() else p) for p in paths]
    return [
        name if short.count(name) == 1 else ".".join(path)
        for name, path in zip(short, paths, strict=True)
    ]


def _check_leaf(torch: Any, leaf: Any, name: str) -> None:
    inside = getattr(leaf, "__dict__", {}).values()
    if any(isinstance(value, torch.Tensor) for value in inside):
        raise IRError(
            f"argument {name} is a {type(leaf).__name__}, whose tensors would become "
            "constants; pass tensors, or dicts, lists and tuples of them"
        )


# --- what comes back ---


def chosen(returned: Any, result: int | str | None) -> Any:
    """The part of what `forward` returns that the program returns.

    None is all of it, or the `loss` of a mapping or an object that has one (as
    transformers' outputs); caches of keys and values are left out.
    """
    if isinstance(result, str):
        return _field(returned, result)
    if result is not None:
        return _position(returned, result)
    loss = _get(returned, "loss")
    return _without_caches(returned) if loss is None else loss


def _get(returned: Any, name: str) -> Any:
    if isinstance(returned, Mapping):
        return returned.get(name)
    if isinstance(returned, tuple | list) and name not in _fields(returned):
        return None
    return getattr(returned, name, None)


def _field(returned: Any, name: str) -> Any:
    value = _get(returned, name)
    if value is None:
        kind = type(returned).__name__
        has = [k for k in _fields(returned) if _get(returned, k) is not None]
        listed = f"; it has {', '.join(has)}" if has else ""
        raise UsageError(f"result {name}: {kind} of forward is without it{listed}")
    return value


def _fields(returned: Any) -> list[str]:
    if isinstance(returned, tuple | list):
        return [*getattr(returned, "_fields", ())]  # a named tuple's
    return [*(returned if isinstance(returned, Mapping) else vars(returned))]


def _position(returned: Any, result: int) -> Any:
    values = returned
    if isinstance(returned, Mapping):
        values = tuple(v for v in returned.values() if v is not None)
    if not isinstance(values, tuple | list) or not 0 <= result < len(values):
        count = len(values) if isinstance(values, tuple | list) else "one"
        raise UsageError(f"result {result}: forward returns {count}, counted from 0")
    return values[result]


def _without_caches(returned: Any) -> Any:
    if not isinstance(returned, Mapping):
        return returned
    return {k: v for k, v in returned.items() if not type(v).__name__.endswith("Cache")}
