"""A model's weights in parts, one folder a rank, as `pcp shard` writes them.

    OUT/shards.json                  the mesh, and the digest of what was cut
    OUT/rank_0/model.safetensors     parameters of rank 0 by the program's names
    OUT/config.json, tokenizer.json  as in the model's own folder

A rank takes its part of such a folder, or cuts it from the model's own, of which it
reads no more than that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcp import outside, strict_json
from pcp.errors import ConfigError
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.serving import weights
from pcp.training.storage import safetensors_io

NAME = "shards.json"


@dataclass(frozen=True)
class Part:
    """Which member's weights are wanted."""

    mesh: Mesh
    rank: int

    @property
    def place(self) -> Mapping[str, int]:
        """Of the member on the mesh."""
        return self.mesh.members[self.rank]


@dataclass(frozen=True)
class Files:
    """The tensors of a folder; whether they are the part already; what they are of."""

    tensors: Mapping[str, np.ndarray]
    cut: bool
    fingerprint: bytes


def files(folder: str | Path, part: Part) -> Files:
    """The files that a member reads; `ConfigError` for parts of another mesh."""
    path = Path(folder) / NAME
    if not path.exists():
        tensors = weights.mapped(folder)
        return Files(tensors, False, weights.fingerprint(tensors))
    said = _said(path)
    axes = dict(part.mesh.axes)
    if said["mesh"] != axes:
        raise ConfigError(
            f"{path}: the parts are of a mesh {_text(said['mesh'])}, and the program "
            f"is for {_text(axes)}; cut the model again with pcp shard"
        )
    own = weights.mapped(Path(folder) / f"rank_{part.rank}")
    return Files(own, True, bytes.fromhex(said["fingerprint"]))


def read(
    found: Files, wanted: Sequence[TensorSpec], source: str | Path, part: Part
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of each of a member's parameters; `wanted` has the whole's."""
    local, mesh, place = _sought(found, wanted, part)
    yield from weights.read(found.tensors, local, source, mesh, place)


def check(
    found: Files, wanted: Sequence[TensorSpec], source: str | Path, part: Part
) -> None:
    """`ConfigError` for what `read` would refuse; nothing is read."""
    local, mesh, place = _sought(found, wanted, part)
    weights.views(found.tensors, local, source, mesh, place)


def _sought(
    found: Files, wanted: Sequence[TensorSpec], part: Part
) -> tuple[Sequence[TensorSpec], Mesh | None, Mapping[str, int] | None]:
    """What is sought in the files: parts of the whole, or the part that they are."""
    place = dict(part.place)
    if not found.cut:
        return wanted, part.mesh, place
    shapes = [spec.layout.local_shape(spec.shape, part.mesh, place) for spec in wanted]
    local = [
        spec.model_copy(update={"shape": shape, "sharding": ()})
        for spec, shape in zip(wanted, shapes, strict=True)
    ]
    return local, None, None


def write(
    folder: str | Path,
    wanted: Sequence[Sequence[TensorSpec]],
    mesh: Mesh,
    out: str | Path,
) -> list[Path]:
    """Cut the weights of `folder` for each member; the files, in rank order.

    `wanted` are those that each member has a part of. Tensors keep their
    types. The folder `out` is made.
    """
    whole, made = weights.mapped(folder), []
    for rank in range(mesh.size):
        part = Part(mesh, rank)
        target = Path(out) / f"rank_{rank}" / weights.SINGLE
        target.parent.mkdir(parents=True, exist_ok=True)
        own = weights.views(whole, wanted[rank], folder, mesh, part.place)
        with open(target, "wb") as file:
            safetensors_io.write(file, own, {"format": "pt"})
        made.append(target)
    said = {"mesh": dict(mesh.axes), "fingerprint": weights.fingerprint(whole).hex()}
    (Path(out) / NAME).write_text(strict_json.dumps(said, indent=1) + "\n")
    return made


def _said(path: Path) -> dict:
    try:
        said = outside.read_json(path)
        mesh = {str(axis): int(n) for axis, n in said["mesh"].items()}
        bytes.fromhex(said["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no list of shards: {error}") from error
    return {"mesh": mesh, "fingerprint": said["fingerprint"]}


def _text(axes: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={n}" for axis, n in axes.items())
