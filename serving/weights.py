"""Weights of a model's folder as the arguments of a program, one after the other.

A program's parameter is a tensor of the files by its name, rows of one,
`qkv_proj.weight[0:64]`, or several of them stacked, `experts.[0:8].up.weight`; it
may have the dimensions in parts, [heads, d, width] for [heads · d, width]. Files are
mapped, so that a rank reads its own part alone, and what is narrower than f32 becomes
f32 on the way.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pcp import outside
from pcp.errors import ConfigError, nearest
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.serving import quantized
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import INDEX

SINGLE = "model.safetensors"
MOST_NAMED = 8
_LOOKED_AT = 256
"""Elements at each end of a tensor."""
_NO_MODEL = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
"""Of config.json, what another file of the same model may say otherwise."""
_ROWS = re.compile(r"(.+)\[(\d+):(\d+)\]")
_STACK = re.compile(r"(.+\.)\[0:(\d+)\](\..+)")


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


def check_same_model(old: str | Path, new: str | Path) -> None:
    """`ConfigError` names a value of config.json that makes it another model."""
    before, after = (outside.read_object(Path(f) / "config.json") for f in (old, new))
    for name in sorted({*before, *after}):
        if name not in _NO_MODEL and before.get(name) != after.get(name):
            raise ConfigError(
                f"{new}: {name} is {after.get(name)!r} in config.json, and "
                f"{before.get(name)!r} in what is served: it is another model, which "
                "needs a server of its own"
            )


def digest(content: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(content).digest()


def fingerprint(files: Mapping[str, np.ndarray]) -> bytes:
    """SHA-256 of names, types, shapes and the ends of all tensors.

    Ranks compare it: that they have files of one model, and of one state of it.
    """
    found = hashlib.sha256()
    for name in sorted(files):
        array = files[name]
        flat = array.reshape(-1)
        found.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        for end in (flat[:_LOOKED_AT], flat[-_LOOKED_AT:]):
            found.update(np.ascontiguousarray(end).view(np.uint8).data)
    return found.digest()


def read(
    files: Mapping[str, np.ndarray],
    wanted: Sequence[TensorSpec],
    source: str | Path,
    mesh: Mesh | None = None,
    place: Mapping[str, int] | None = None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of each parameter, of which `wanted` has the whole's shapes.

    With a mesh only the part of the member at `place`. Integers (`quantized`) come one
    matrix after the other. All of them are checked before
    the first is read: `ConfigError` names what is missing, or has another shape.
    """
    plain = [spec for spec in wanted if quantized.parsed(spec.name) is None]
    integers = [spec for spec in wanted if quantized.parsed(spec.name) is not None]
    found = views(files, plain, source, mesh, place)
    matrices = _matrices(files, integers, source)
    for spec in plain:
        yield spec.name, _as(np.ascontiguousarray(found[spec.name]), spec.dtype)
    for (tensor, kind), matrix in matrices.items():
        panels, scales = quantized.quantized(matrix, kind)
        yield f"{tensor}.{kind}", panels
        yield f"{tensor}.{kind}.scales", scales


def _matrices(
    files: Mapping[str, np.ndarray], integers: Sequence[TensorSpec], source: str | Path
) -> dict[tuple[str, str], np.ndarray]:
    """Tensor and kind of what becomes integers, where it lies in the files; checked."""
    found = {}
    for spec in integers:
        tensor, kind, scales = quantized.parsed(spec.name) or (spec.name, "", True)
        named = spec.model_copy(update={"name": tensor})
        _check_there(files, [named], source)
        name, rows = _stored(files, named)
        matrix = files[name][rows]
        if matrix.ndim != 2 or (
            not scales and quantized.shape(matrix, kind) != tuple(spec.shape)
        ):
            raise ConfigError(
                f"{source}: {tensor} is {list(matrix.shape)} in the files, which are "
                f"no panels {list(spec.shape)} of {kind} by config.json"
            )
        found[tensor, kind] = matrix
    return found


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    """Floats as another type by MLIR's name, rounded to the nearest, half to even."""
    if dtype != "bf16" or array.dtype == numpy_dtype(dtype):
        return array.astype(numpy_dtype(dtype))
    bits = array.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    kept = np.where(np.isnan(array), bits >> 16 | 0x40, rounded)
    return kept.astype(np.uint16).view(numpy_dtype(dtype))


def views(
    files: Mapping[str, np.ndarray],
    wanted: Sequence[TensorSpec],
    source: str | Path,
    mesh: Mesh | None = None,
    place: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """The parameters where they lie in the files, in the types that they have there.

    Those that are stacked are copied.
    """
    _check_there(files, wanted, source)
    found = {}
    for spec in wanted:
        parts = [_view(files, each, source) for each in _stacked(files, spec)]
        part = (slice(None),) * len(spec.shape)
        if mesh is not None:
            part = spec.layout.slices(spec.shape, mesh, dict(place or {}))
        if parts[0].ndim == len(spec.shape):
            found[spec.name] = parts[0][part]
        else:
            found[spec.name] = np.stack([each[part[1:]] for each in parts[part[0]]])
    return found


def _stacked(files: Mapping[str, np.ndarray], spec: TensorSpec) -> list[TensorSpec]:
    """The tensors of the files that are one parameter: itself, or those of a stack."""
    stack = _STACK.fullmatch(spec.name)
    if stack is None or spec.name in files:
        return [spec]
    return [
        spec.model_copy(
            update={"name": f"{stack[1]}{i}{stack[3]}", "shape": spec.shape[1:]}
        )
        for i in range(int(stack[2]))
    ]


def _check_there(
    files: Mapping[str, np.ndarray], wanted: Sequence[TensorSpec], source: str | Path
) -> None:
    missing = sorted(
        {
            t
            for spec in wanted
            for each in _stacked(files, spec)
            if (t := _stored(files, each)[0]) not in files
        }
    )
    if missing:
        named, more = ", ".join(missing[:MOST_NAMED]), len(missing) - MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        raise ConfigError(
            f"{source}: the files have no {named}{rest}.{nearest(missing[0], files)}"
        )


def _stored(files: Mapping[str, np.ndarray], spec: TensorSpec) -> tuple[str, slice]:
    """The tensor of the files, and which rows of it.

    Files of parts have the rows of a fused tensor under the name of the parameter.
    """
    found = _ROWS.fullmatch(spec.name)
    if found is None or spec.name in files:
        return spec.name, slice(None)
    return found[1], slice(int(found[2]), int(found[3]))


def _view(
    files: Mapping[str, np.ndarray], spec: TensorSpec, source: str | Path
) -> np.ndarray:
    name, rows = _stored(files, spec)
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
