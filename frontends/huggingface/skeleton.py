"""A model of transformers from the `config.json` of its folder, without its weights.

Parameters are on the device `meta`, where they have shapes and no memory; buffers have
their values. The model is in evaluation mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pcp.errors import ConfigError, MissingPackage, UsageError, install, nearest
from pcp.frontends.huggingface.tasks import TASKS, Task
from pcp.frontends.huggingface.weights import fill_buffers, has_weights
from pcp.frontends.model_config import read_config


def transformers() -> Any:
    """The package, or what to install."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage(
            f"a model of Hugging Face needs transformers: {install('hf')}"
        ) from error
    return transformers


def skeleton(
    folder: str | Path, task: str | None = None, seed: int | None = None
) -> tuple[Any, Task]:
    """The model in `folder` and its task, which the architecture says if nothing does.

    Weights are float32, whatever the files have. Where there are no files, they are
    drawn as transformers draws them, with a seed of their own where one is given.
    """
    package, name = transformers(), task or task_of(folder)
    if name not in TASKS:
        raise UsageError(
            f"task {name!r}: there is {', '.join(TASKS)}.{nearest(name, TASKS)}"
        )
    with _foreign(folder):
        made = package.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    kind = getattr(package, TASKS[name].auto)
    if not has_weights(folder):
        with _foreign(folder), _seeded(seed):
            return kind.from_config(made, dtype=_dtype()).eval(), TASKS[name]
    with _foreign(folder), without_weights():
        model = kind.from_config(made, dtype=_dtype()).eval()
    fill_buffers(folder, model)
    return model, TASKS[name]


def _dtype() -> Any:
    import torch

    return torch.float32


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Torch's generator with this seed, and afterwards as it was."""
    import torch

    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def task_of(folder: str | Path) -> str:
    """The task that the architecture of a folder's model says."""
    architecture = (read_config(folder).get("architectures") or [""])[0]
    for name, task in TASKS.items():
        if architecture.endswith(task.suffixes):
            return name
    raise UsageError(
        f"{folder}: its architecture {architecture or '(none)'} says no task; say one: "
        f"{', '.join(TASKS)}"
    )


@contextmanager
def _foreign(folder: str | Path) -> Iterator[None]:
    """What transformers raises about a configuration, as one line."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{folder}: transformers makes no model of it: {first}"
        ) from (error)


@contextmanager
def without_weights() -> Iterator[None]:
    """Parameters that are made inside lose their memory; buffers keep theirs."""
    from torch.nn import Module, Parameter

    register = Module.register_parameter

    def registered(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:  # a tied one stays the same
            trained = parameter.requires_grad
            parameter = Parameter(parameter.data.to("meta"), requires_grad=trained)
        register(module, name, parameter)

    with patch.object(Module, "register_parameter", registered):
        yield
