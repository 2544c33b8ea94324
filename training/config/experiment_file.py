"""The experiment file: one JSON object, with the keys of an `Experiment`.

An unknown key is an error that names the nearest known one; a bad value is an error
that names the key. `json_schema()` is what `pcp schema` prints. Relative paths are
looked up beside the file, then in the working directory.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from pcp import outside, strict_json
from pcp.errors import ConfigError, nearest
from pcp.training.config.data_options import DataOptions
from pcp.training.config.experiment import BUILTIN, HUGGING_FACE, Experiment


def load(
    path: str | Path,
    changes: Mapping[str, object] = MappingProxyType({}),
    given: Mapping[str, object] = MappingProxyType({}),
) -> Experiment:
    """Read an experiment file, with its paths made absolute.

    `changes` replace keys of the file; a dot separates the keys of nested objects. Keys
    that are `given` count as keys of the file.
    """
    path = Path(path)
    raw = outside.read_object(path, "the experiment") | dict(given)
    if changes:
        parse(raw, source=str(path))  # an error of the file names the file
        for key, value in changes.items():
            _change(raw, key.split("."), value)
    source = f"{path} with --set" if changes else str(path)
    return _with_paths(parse(raw, source=source), path.absolute().parent)


def given(values: Mapping[str, object]) -> Experiment:
    """An experiment by its keys, with paths from the current folder."""
    return _with_paths(parse(dict(values)), Path.cwd())


def _change(raw: dict[str, Any], keys: list[str], value: object) -> None:
    """Set a key; several keys are those of nested objects."""
    first, *inner = keys
    if not inner:
        raw[first] = value
        return
    held = raw.get(first)
    raw[first] = dict(held) if isinstance(held, dict) else {}
    _change(raw[first], inner, value)


#: Errors of pydantic whose text has Python's types in place of JSON's.
_OF_PYTHON = {
    "tuple_type": "Input should be a list: [...]",
    "dict_type": "Input should be an object: {...}",
}


#: Words of other systems, and of ours, for a key that has another name.
_OTHER_WORDS = {
    "rounds": "outer_loop_steps",
    "outer_steps": "outer_loop_steps",
    "steps": "tau",
    "inner_steps": "tau",
    "h": "tau",
    "lr": "learning_rate",
    "outer_lr": "outer_learning_rate",
    "outer_momentum": "nesterov_momentum",
    "momentum": "inner_momentum",
    "eps": "epsilon",
    "batch_size": "effective_batch_size",
    "epochs": "max_epochs",
    "num_workers": "workers",
    "model": "model_path",
    "weights": "initial_weights",
    "clip": "clip_norm",
    "grad_clip": "clip_norm",
    "output_dir": "checkpoint_dir",
    "save_every": "checkpoint_every",
    "eval_every": "validate_every",
    "warmup": "warmup_steps",
    "resume": "should_resume",
}


def _meant(key: str) -> str:
    """The key for another name of it, or the nearest one in spelling."""
    if (other := _OTHER_WORDS.get(key.lower())) is not None:
        return f" Did you mean {other!r}?"
    return nearest(key, Experiment.model_fields)


def parse(raw: object, *, source: str = "experiment") -> Experiment:
    """Check a decoded experiment; `source` names it in errors."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: an experiment is one JSON object")
    for key in raw:
        if key not in Experiment.model_fields:
            raise ConfigError(
                f"{source}: unknown key {key!r}.{_meant(str(key))} "
                "(`pcp schema` lists all keys)"
            )
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            given = str(first["loc"][-1])
            what = f"unknown key.{nearest(given, DataOptions.model_fields)}"
        if first["type"] == "literal_error":
            choices = re.findall(r"'([^']*)'", first["msg"])
            what += f".{nearest(str(first['input']), choices)}"
        if first["type"] in _OF_PYTHON:
            what = _OF_PYTHON[first["type"]]
        raise ConfigError(f"{source}: {f'{where}: ' if where else ''}{what}") from error


def json_schema() -> str:
    """The JSON Schema of an experiment file."""
    return strict_json.dumps(Experiment.model_json_schema(), indent=2)


def resolve(path: str, folder: Path) -> str:
    """`path` beside the experiment if it is there, else in the working directory."""
    if path.startswith((BUILTIN, HUGGING_FACE)) or Path(path).is_absolute():
        return path
    local = folder / path
    return str(local if os.path.exists(local) else Path(path).absolute())


def _with_paths(experiment: Experiment, folder: Path) -> Experiment:
    keys = ("model_path", "data_path", "initial_weights", "frozen_weights")
    keys += ("chunk_manifest_path", "cluster", "tuning")
    given = {key: value for key in keys if (value := getattr(experiment, key))}
    found: dict[str, object] = {
        key: _existing(key, value, folder) for key, value in given.items()
    }
    if experiment.sharding not in (None, "auto", "none"):
        found["sharding"] = _existing("sharding", experiment.sharding, folder)
    files = (_existing("extensions", each, folder) for each in experiment.extensions)
    found["extensions"] = tuple(files)
    if experiment.data is not None:
        found["data"] = _data_with_paths(experiment.data, folder)
    # A run's results belong where the command was started, not beside the file.
    found["checkpoint_dir"] = str(Path(experiment.checkpoint_dir).absolute())
    return experiment.model_copy(update=found)


def _data_with_paths(data: DataOptions, folder: Path) -> DataOptions:
    keys = ("mask_path", "tokenizer_path")
    given = {key: value for key in keys if (value := getattr(data, key))}
    found = {k: _existing(f"data.{k}", path, folder) for k, path in given.items()}
    return data.model_copy(update=found)


def python_dataset(path: str) -> tuple[str, str] | None:
    """File and name of a `file.py:Dataset`; None for any other path."""
    file, colon, name = path.rpartition(":")
    return (file, name) if colon and file.endswith(".py") else None


def _existing(key: str, path: str, folder: Path) -> str:
    """`path`, resolved; `ConfigError` where there is no such file."""
    if python := python_dataset(path):
        file, name = python
        return f"{_existing(key, file, folder)}:{name}"
    found = resolve(path, folder)
    if not found.startswith((BUILTIN, HUGGING_FACE)) and not os.path.exists(found):
        raise ConfigError(
            f"{key}: no file {path!r}, neither in {folder} nor in the working directory"
        )
    return found
