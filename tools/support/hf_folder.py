"""Folders of transformers: weights as a run begins with them, and as it leaves them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import Kind, StreamedFile

if TYPE_CHECKING:
    from pcp.frontends.huggingface.exported import Exported

SHARD_BYTES = 5 << 30
"""Of the tensors of one file, as transformers has it by default."""


def write_weights(exported: "Exported", path: Path) -> None:
    """One file of all that `@main` takes of the model, by its names, in its types.

    Tensors are read and written one after the other.
    """
    with StreamedFile(path, {n: Kind(*k) for n, k in exported.kinds().items()}) as file:
        for name, array in exported.values():
            file.put(name, array)


def save(folder: str | Path, values: Mapping[str, np.ndarray], out: str | Path) -> None:
    """Write the folder `out`, for `from_pretrained`: `folder` with other weights.

    `values` are those of a checkpoint, by the names of `@main`. Configuration and
    tokenizer are copied; weights are written in the types that `values` have.
    """
    from pcp.frontends.huggingface import skeleton, weights

    source, target = Path(folder), Path(out)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target}: is not empty; name a new folder")
    model, _ = skeleton.skeleton(source)
    tensors = weights.written(model, values)
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and not _is_weights(file):
            shutil.copyfile(file, target / file.name)
    _write_config(source, target, tensors)
    _write_tensors(target, tensors)


def _is_weights(file: Path) -> bool:
    kinds = (
        ".safetensors",
        ".safetensors.index.json",
        ".bin",
        ".bin.index.json",
        ".h5",
    )
    return file.name.endswith((*kinds, ".msgpack", ".pt", ".pth", ".gguf", ".onnx"))


def _write_config(
    source: Path, target: Path, tensors: Mapping[str, np.ndarray]
) -> None:
    """With the type that the weights have: `from_pretrained` would cast them."""
    from pcp.frontends.model_config import read_config

    found: dict[str, Any] = read_config(source)
    found.pop("torch_dtype", None)  # the older spelling
    floats = {a.dtype.name for a in tensors.values() if a.dtype.kind == "f"}
    if len(floats) == 1:
        found["dtype"] = floats.pop()
    text = strict_json.dumps(found, indent=2)
    (target / "config.json").write_text(text, encoding="utf-8")


def _write_tensors(target: Path, tensors: Mapping[str, np.ndarray]) -> None:
    shards = safetensors_io.shards(tensors, SHARD_BYTES)
    names = ["model.safetensors"]
    if len(shards) > 1:
        count = len(shards)
        names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
        index = {
            "metadata": {"total_size": sum(a.nbytes for a in tensors.values())},
            "weight_map": {k: n for n, s in zip(names, shards, strict=True) for k in s},
        }
        text = strict_json.dumps(index, indent=2)
        (target / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    for name, shard in zip(names, shards, strict=True):
        with open(target / name, "wb") as file:
            safetensors_io.write(file, shard, {"format": "pt"})
