"""Weights between the files of transformers and the parameters of its models.

Names in files differ from those of parameters: a prefix comes or goes, older names are
renamed, tied parameters stand once, and the experts of a layer are many tensors in a
file and one parameter. transformers has tables of all that; they are applied here to
one parameter at a time, and no more than that is in memory.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pcp import outside
from pcp.errors import ConfigError, StateMismatch, nearest
from pcp.frontends.pytorch.constants import to_numpy

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_NAMED = 8

Loads = Mapping[str, Callable[[], Any]]
"""Names in files, and what reads the tensor."""


def has_weights(folder: str | Path) -> bool:
    """Whether there are files of weights in a folder."""
    return any((Path(folder) / name).exists() for name in (SINGLE, INDEX))


def read(
    folder: str | Path, model: Any, names: Sequence[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of these tensors of a skeleton, one after the other.

    Parameters come from the files in the skeleton's dtype, buffers from the skeleton.
    `ConfigError` names what the files lack, and what has another shape there.
    """
    buffers = dict(model.named_buffers())
    for name in names:
        if name in buffers:
            yield name, to_numpy(buffers[name])
    parameters = [name for name in names if name not in buffers]
    for name, tensor in _converted(folder, model, parameters):
        yield name, to_numpy(tensor)


def fill_buffers(folder: str | Path, model: Any) -> None:
    """Buffers that files have (statistics of batch norm) get their values."""
    saved, buffers = model.state_dict(), dict(model.named_buffers())
    names = [name for name in buffers if name in saved]
    for name, tensor in _converted(folder, model, names):
        buffers[name].copy_(tensor)


def _converted(
    folder: str | Path, model: Any, names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Tensors of these names, which all must be there, as the model has them."""
    state, own = model.state_dict(), _own_names(model)
    groups = _groups(model, _loads(Path(folder)), own, set(names))
    left = set(names)
    for first, transform in groups.items():
        values = transform.convert(first, model=model, config=model.config)
        for key, value in values.items():
            name = own.get(key, key)
            if name in left:
                left.remove(name)
                tensor = value[0] if isinstance(value, list) else value
                _check_shape(name, tensor, state[name], folder)
                yield name, tensor.to(state[name].dtype)
    if lacking := [name for name in names if name in left]:
        raise ConfigError(_lacking(folder, lacking, [*groups]))


def written(model: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors by the names of files, of the parameters of a skeleton by their own.

    Buffers that belong into a file are the model's. Nothing is copied but what a file
    has otherwise than the model.
    """
    import torch

    own = _own_names(model)
    missing = [n for n, _ in model.named_parameters() if n not in arrays]
    if missing:
        raise StateMismatch(f"no value of {_listed(missing)}")
    state = {
        name: torch.from_numpy(np.asarray(arrays[name])) if name in arrays else tensor
        for name, tensor in model.state_dict().items()
        if own.get(name, name) == name
    }
    revert = import_module("transformers.core_model_loading").revert_weight_conversion
    return {k: v.numpy() for k, v in revert(model, state).items()}


def _own_names(model: Any) -> dict[str, str]:
    """Every name of a parameter, and the one under which `@main` takes it."""
    first = {id(p): name for name, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every}


# --- names ---


def _groups(
    model: Any, loads: Loads, own: Mapping[str, str], wanted: Collection[str]
) -> dict[str, Any]:
    """By the first tensor that comes of it: tensors of files with their transform.

    A transform may give several; those that give none of `wanted` are left out.
    """
    core = import_module("transformers.core_model_loading")
    tables = import_module("transformers.conversion_mapping")
    entries = tables.get_model_conversion_mapping(model)
    renamings = [e for e in entries if isinstance(e, core.WeightRenaming)]
    converters = [e for e in entries if isinstance(e, core.WeightConverter)]
    by_pattern = {p: c for c in converters for p in c.source_patterns}
    known = model.state_dict()
    rename = partial(
        core.rename_source_key,
        base_model_prefix=model.base_model_prefix,
        meta_state_dict=known,
    )
    groups: dict[str, Any] = {}
    for key in sorted(loads, key=core.dot_natural_key):
        name, pattern = rename(key, renamings, converters)
        if name not in known and key in known:  # it has today's name already
            name, pattern = rename(key, [], [])
        if name not in known:
            continue  # of a head that this model has not
        if pattern is None and own.get(name, name) not in wanted:
            continue
        if pattern is None:
            transform, pattern = core.WeightRenaming(key, name), key
        else:
            transform = deepcopy(by_pattern[pattern])
        group = groups.setdefault(name, transform)
        group.add_tensor(name, key, pattern, loads[key])
    return groups


# --- files ---


def _loads(folder: Path) -> Loads:
    from safetensors import SafetensorError, safe_open

    found: dict[str, Callable[[], Any]] = {}
    for path in _shards(folder):
        try:
            file = safe_open(str(path), "pt")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: cannot read the weights: {error}") from error
        found |= {key: partial(file.get_tensor, key) for key in file.keys()}
    return found


def _shards(folder: Path) -> Sequence[Path]:
    """The files of weights; `ConfigError` where there are none in this format."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    index = folder / INDEX
    try:
        return outside.weight_files(index)
    except OSError as error:
        raise ConfigError(
            f"{folder}: has neither {SINGLE} nor {INDEX}; save the model with "
            "save_pretrained(folder), which writes this format"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{index}: damaged: {error}") from error


# --- errors ---


def _check_shape(name: str, found: Any, wanted: Any, folder: str | Path) -> None:
    if found.shape != wanted.shape:
        raise ConfigError(
            f"{folder}: {name} is {list(found.shape)} in the files, and "
            f"{list(wanted.shape)} by config.json"
        )


def _lacking(folder: str | Path, names: Sequence[str], known: Sequence[str]) -> str:
    hint = nearest(names[0], known)
    return f"{folder}: the files have no {_listed(names)}.{hint}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    listed = ", ".join(names[:MOST_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
