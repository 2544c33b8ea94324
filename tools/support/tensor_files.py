"""The tensors that a function takes and gives, by name, as .npz files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcp import outside
from pcp.bundle import Function, TensorSpec
from pcp.errors import UsageError, nearest
from pcp.runtime.memory.dtypes import bits_dtype, numpy_dtype


def keys(function: Function, results: bool) -> list[str]:
    """A name for each tensor: its own, with its number where it is not the only one."""
    return names(function.results if results else function.inputs)


def names(specs: Sequence[TensorSpec]) -> list[str]:
    names = [spec.name for spec in specs]
    return [
        name if names.count(name) == 1 else f"{name}.{i}"
        for i, name in enumerate(names)
    ]


def load(path: str, function: Function) -> list[np.ndarray]:
    """The whole inputs of a function, checked against its signature."""
    wanted = keys(function, results=False)
    if path.startswith("random:"):
        return random(path, function.inputs)
    given = read(path)
    for key in wanted:
        if key not in given:
            raise UsageError(
                f"{path}: no tensor {key!r}; the function takes {', '.join(wanted)}."
                + nearest(key, given)
            )
    for key, spec in zip(wanted, function.inputs, strict=True):
        if given[key].shape != spec.shape:
            raise UsageError(
                f"{path}: {key} has shape {list(given[key].shape)}, not "
                f"{list(spec.shape)}"
            )
        if given[key].dtype not in (numpy_dtype(spec.dtype), bits_dtype(spec.dtype)):
            raise UsageError(
                f"{path}: {key} holds {given[key].dtype}, the function takes "
                f"{spec.dtype}"
            )
    return [given[key] for key in wanted]


def read(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except outside.DAMAGED_ARCHIVE as error:
        why = getattr(error, "strerror", None) or "it is no .npz file that numpy reads"
        raise UsageError(
            f"{path}: cannot read the tensors: {why}; give one, or random:0"
        ) from error


def random(text: str, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Normal numbers of deviation 0.02; integers are 0 or 1. The seed decides all."""
    try:
        drawing = np.random.default_rng(int(text.removeprefix("random:")))
    except ValueError as error:
        raise UsageError(f"--inputs {text}: write it as random:0") from error
    drawn = []
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        floats = np.issubdtype(dtype, np.inexact)
        values = (
            drawing.normal(0, 0.02, spec.shape)
            if floats
            else drawing.integers(0, 2, spec.shape)
        )
        drawn.append(np.asarray(values).astype(dtype))
    return drawn


def save(path: str | Path, keys: Sequence[str], values: Sequence[np.ndarray]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        arrays: dict[str, Any] = dict(zip(keys, values, strict=True))
        np.savez(file, **arrays)
