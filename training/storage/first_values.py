"""What a run begins with that no seed makes: initial weights, and frozen tensors.

A model that reads tensors and trains none of them (`frozen`), or writes state that is
no constant at first, brings their values in a file of its own, which `pcp export` puts
beside it. A run keeps that file under its digest, `frozen/<sha256>.safetensors` in its
folder; workers take the tensors when they join, and no checkpoint has them.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pcp.errors import ConfigError, nearest
from pcp.manifest import TensorSpec
from pcp.training.config.experiment import Experiment
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import FROZEN, as_taken, like, prefixed, unlike

FOLDER = "frozen"


def brought(experiment: Experiment) -> Arrays:
    """What the model brings, by name; nothing where there is no file of it."""
    path = experiment.brought_path
    return {} if path is None else safetensors_io.read(path)


def served(experiment: Experiment) -> Arrays:
    """The same, as workers take it."""
    found = brought(experiment)
    return prefixed(FROZEN, [*found], found.values())


def check(experiment: Experiment, wanted: Iterable[TensorSpec]) -> str | None:
    """A digest of what the model brings, None for nothing; `ConfigError` if it lacks.

    `wanted` are the tensors that the program takes and its seed does not make.
    """
    specs = list(wanted)
    kinds = {spec.name: like(spec) for spec in specs}
    if not kinds:
        return None
    found = as_taken(brought(experiment), specs)
    for name, other in unlike(kinds, found):
        where = experiment.brought_path or "no file"
        if other is None:
            raise ConfigError(
                f"frozen_weights: the model brings {name!r}, and {where} has no such "
                f"tensor; name the file that pcp export wrote beside the model."
                f"{nearest(name, found)}"
            )
        raise ConfigError(
            f"frozen_weights: {name} is {other.dtype} {list(other.shape)} in {where}, "
            f"the model's is {kinds[name].dtype} {list(kinds[name].shape)}"
        )
    return safetensors_io.digest({name: found[name] for name in kinds})


def keep(experiment: Experiment, run: Path, digest: str) -> None:
    """Put the file into a run's folder under its digest, as a link if that goes."""
    path = experiment.brought_path
    kept = run / FOLDER / f"{digest}.safetensors"
    if path is None or kept.exists():
        return
    kept.parent.mkdir(exist_ok=True)
    with suppress(OSError):
        os.link(path, kept)
        return
    hidden = kept.with_suffix(f".{os.getpid()}")
    shutil.copyfile(path, hidden)
    os.replace(hidden, kept)
