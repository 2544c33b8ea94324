"""Weights of a model's folder as the arguments of a program, one after the other.

A program's parameter is a tensor of the files by its name, or rows of one,
`qkv_proj.weight[0:64]`; it may have the dimensions in parts, [heads, d, width] for
[heads · d, width]. Files are mapped, so that a rank reads its own part alone, and what
is narrower than f32 becomes f32 on the way.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pcp.errors import ConfigError, nearest
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import INDEX

SINGLE = "model.safetensors"
MOST_NAMED = 8
_ROWS = re.compile(r"(.+)\[(\d+):(\d+)\]")


def parameters(inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The arguments of a function that weights are for."""
    return [spec for spec in inputs if spec.role in ("frozen", "param")]


def mapped(folder: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a folder, in the memory of its files, which there must be."""
    folder = Path(folder)
    for name in (SINGLE, SINGLE + INDEX):
        if (folder / name).exists():
            return safetensors_io.mapped(folder / name)
    raise ConfigError(
        f"{folder}: has neither {SINGLE} nor {SINGLE}{INDEX}; save the model with "
        "save_pretrained(folder), which writes this format"
    )


def read(
    files: Mapping[str, np.ndarray],
    wanted: Sequence[TensorSpec],
    source: str | Path,
    mesh: Mesh | None = None,
    place: Mapping[str, int] | None = None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of each parameter, of which `wanted` has the whole's shapes.

    With a mesh only the part of the member at `place`. All of them are checked before
    the first is read: `ConfigError` names what is missing, or has another shape.
    """
    views = {
        spec.name: _view(files, spec, source) for spec in _there(files, wanted, source)
    }
    for spec in wanted:
        view = views[spec.name]
        if mesh is not None:
            view = view[spec.layout.slices(spec.shape, mesh, dict(place or {}))]
        yield spec.name, np.ascontiguousarray(view).astype(numpy_dtype(spec.dtype))


def _there(
    files: Mapping[str, np.ndarray], wanted: Sequence[TensorSpec], source: str | Path
) -> Sequence[TensorSpec]:
    missing = sorted({t for spec in wanted if (t := _tensor(spec)[0]) not in files})
    if missing:
        named, more = ", ".join(missing[:MOST_NAMED]), len(missing) - MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        raise ConfigError(
            f"{source}: the files have no {named}{rest}.{nearest(missing[0], files)}"
        )
    return wanted


def _tensor(spec: TensorSpec) -> tuple[str, slice]:
    """The tensor of the files, and which rows of it."""
    if (found := _ROWS.fullmatch(spec.name)) is None:
        return spec.name, slice(None)
    return found[1], slice(int(found[2]), int(found[3]))


def _view(
    files: Mapping[str, np.ndarray], spec: TensorSpec, source: str | Path
) -> np.ndarray:
    name, rows = _tensor(spec)
    view = files[name][rows]
    if not flattens(spec.shape, view.shape):
        raise ConfigError(
            f"{source}: {spec.name} is {list(view.shape)} in the files, and "
            f"{list(spec.shape)} by config.json"
        )
    return view.reshape(spec.shape)


def flattens(shape: Sequence[int], flat: Sequence[int]) -> bool:
    """Whether `flat` is `shape` with neighbouring dimensions as one.

    >>> flattens((2, 4, 8, 64), (64, 64)), flattens((2, 4), (4, 2))
    (True, False)
    """
    rest = list(shape)
    for size in flat:
        taken = 0
        while rest and taken < size:
            taken = (taken or 1) * rest.pop(0)
        if taken != size:
            return False
    return all(n == 1 for n in rest)
