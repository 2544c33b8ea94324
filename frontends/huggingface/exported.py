"""The program of a folder of transformers, and the values that it begins with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcp.dialect.bindings import ir
from pcp.dialect.roles import OF_THE_MODEL
from pcp.errors import IRError
from pcp.frontends.huggingface import weights
from pcp.frontends.huggingface.skeleton import skeleton
from pcp.frontends.huggingface.tasks import Size, example_inputs
from pcp.frontends.signature import arguments_of, entry
from pcp.frontends.torch import from_torch, values_of


@dataclass(frozen=True)
class Exported:
    """A program with the model and the folder that it was made from."""

    module: ir.Module
    model: Any
    folder: Path

    def names(self) -> list[str]:
        """Of the tensors that `@main` takes of the model."""
        arguments = arguments_of(self.module)
        return [a.name for a in arguments if a.role in OF_THE_MODEL]

    def kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type, as safetensors names it, and shape of each of them."""
        import torch

        types = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return {
            name: (types[named[name].dtype], tuple(named[name].shape))
            for name in self.names()
        }

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and value of each of them, one after the other, in no certain order."""
        if not weights.has_weights(self.folder):
            yield from values_of(self.model, self.module).items()
            return
        yield from weights.read(self.folder, self.model, self.names())


def export(
    folder: str | Path,
    task: str | None,
    size: Size,
    result: int | str | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    seed: int | None = None,
) -> Exported:
    """Trace the model in `folder` for a task; `given` replaces and adds inputs.

    `training` is the model's mode, `seed` that of weights where the folder has none.

    An input that no result depends on is an `IRError`: the model ignores it.
    """
    model, kind = skeleton(folder, task, seed)
    model.train(training)
    inputs = example_inputs(kind, model.config, size, given or {})
    module = from_torch(model, result=result, **inputs)
    _check_used(module, str(folder))
    return Exported(module, model, Path(folder))


def _check_used(module: ir.Module, folder: str) -> None:
    block = entry(module).regions[0].blocks[0]
    for argument, value in zip(arguments_of(module), block.arguments, strict=True):
        if argument.role == "data" and not any(True for _ in value.uses):
            raise IRError(
                f"{folder}: the model does not use {argument.name}; leave it out "
                f"({argument.name}=None)"
            )
