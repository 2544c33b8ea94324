"""First values that no seed makes: initial weights, and frozen tensors.

A model with frozen tensors, or with state that is no constant at first, has their
values in a file that `pcp export` writes beside the model. A run keeps these tensors
under their digest, `frozen/<sha256>.safetensors` in its folder, in the program's types:
a copy, since the model's own file may be written again while the run goes on. Workers
that join fetch them from there, and a replay reads them there; no checkpoint has them.

First values of parameters may follow from frozen tensors, as `norms` of an initializer.
The shepherd computes them once, so that all workers begin with the same bits.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pcp import whole_file
from pcp.errors import ConfigError, StateMismatch, nearest
from pcp.manifest import Parameter, TensorSpec
from pcp.training.config.experiment import Experiment
from pcp.training.storage import safetensors_io
from pcp.training.storage.derived_values import derived
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import FROZEN, as_taken, like, prefixed, unlike

FOLDER = "frozen"
_SHOWN = 12
"""The most names of tensors in an error."""


def brought(experiment: Experiment) -> Arrays:
    """The values that come with the model, by name; none without a file."""
    path = experiment.brought_path
    return {} if path is None else safetensors_io.read(path)


def served(run: Path) -> Arrays:
    """The kept values in the form that workers fetch; `StateMismatch` if changed."""
    found: Arrays = {}
    for path in sorted((run / FOLDER).glob("*.safetensors")):
        arrays = safetensors_io.read(path)
        _check_digest(path, arrays)
        found |= arrays
    return prefixed(FROZEN, [*found], found.values())


def _check_digest(path: Path, arrays: Arrays) -> None:
    """Check a file against the digest in its name."""
    if (digest := safetensors_io.digest(arrays)) != path.stem:
        raise StateMismatch(
            f"{path} is not what the run began with: its digest is {digest[:12]} now; "
            "put the file back, or start a new run"
        )


def check_names(path: str, wanted: Collection[str], found: Collection[str]) -> None:
    """`ConfigError` with the tensors that the initial weights lack."""
    lacking = [name for name in wanted if name not in found]
    if not lacking:
        return
    shown = ", ".join(map(repr, lacking[:_SHOWN]))
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    raise ConfigError(
        f"initial_weights: {path} lacks {len(lacking)} of the model's {len(wanted)} "
        f"tensors: {shown}{more}.{nearest(lacking[0], found)}"
    )


def check_shapes(path: str, parameters: Iterable[Parameter]) -> None:
    """Compare a file with a model that is not compiled yet.

    `ConfigError` for names that the file lacks, and for other shapes.
    """
    kinds, wanted = safetensors_io.mapped(path), [*parameters]
    check_names(path, [p.name for p in wanted], kinds)
    for p in wanted:
        if (shape := kinds[p.name].shape) != p.shape:
            raise ConfigError(
                f"initial_weights: {p.name} is {list(shape)} in {path}, the model's is "
                f"{list(p.shape)}"
            )


def _taken(
    experiment: Experiment, specs: Sequence[TensorSpec], parameters: Sequence[Parameter]
) -> Arrays:
    """The values that come with the model, in the program's types."""
    found = as_taken(brought(experiment), specs)
    return found | derived(parameters, found)


def check(
    experiment: Experiment,
    wanted: Iterable[TensorSpec],
    parameters: Sequence[Parameter] = (),
) -> str | None:
    """A digest of the values that come with the model; `ConfigError` if some lack.

    `wanted` are the tensors of the program that do not follow from the seed; without
    any the digest is None. Values of `parameters` that follow from frozen tensors may
    lack.
    """
    specs = list(wanted)
    kinds = {spec.name: like(spec) for spec in specs}
    if not kinds:
        return None
    found = _taken(experiment, specs, parameters)
    for name, other in unlike(kinds, found):
        where = experiment.brought_path
        if other is None:
            lacks = f"{where} lacks it" if where else "there is no file with it"
            raise ConfigError(
                f"frozen_weights: {name!r} is frozen, so its values come with the "
                f"model, and {lacks}; name the file that pcp export wrote beside the "
                f"model, or another with all frozen tensors.{nearest(name, found)}"
            )
        raise ConfigError(
            f"frozen_weights: {name} is {other.dtype} {list(other.shape)} in {where}, "
            f"the model's is {kinds[name].dtype} {list(kinds[name].shape)}"
        )
    return safetensors_io.digest({name: found[name] for name in kinds})


def keep(
    experiment: Experiment,
    wanted: Iterable[TensorSpec],
    run: Path,
    digest: str,
    parameters: Sequence[Parameter] = (),
) -> None:
    """Keep the program's values in a run's folder, under their digest.

    `StateMismatch` where the file has changed since `check`.
    """
    kept = run / FOLDER / f"{digest}.safetensors"
    if kept.exists():
        return
    specs = list(wanted)
    found = _taken(experiment, specs, parameters)
    arrays = {spec.name: found[spec.name] for spec in specs if spec.name in found}
    _check_digest(kept, arrays)
    kept.parent.mkdir(exist_ok=True)
    with whole_file.replacing(kept) as file:
        safetensors_io.write(file, arrays)
