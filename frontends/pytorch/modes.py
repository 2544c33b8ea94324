"""A PyTorch model's mode: whether its forward asks for it, and its evaluation.

A model in training mode trains by one program and is validated by another one, its
forward under `model.eval()`: without dropout, with the statistics that batch norm has
gathered. Where no module asks for `training` they are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Asked:
    """Whether a module in training mode was asked for its mode."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def watching(torch: Any, model: "torch.nn.Module") -> Iterator[Asked]:
    """Note whether the model's own modules are asked for `training` meanwhile."""
    found, own = Asked(), {id(module) for module in model.modules()}

    def mode(module: Any) -> bool:
        training = module.__dict__["training"]
        found.asked |= training and id(module) in own
        return training

    def set_mode(module: Any, training: bool) -> None:
        module.__dict__["training"] = training

    # The class has no such attribute: a property goes before those of its objects.
    torch.nn.Module.training = property(mode, set_mode)
    try:
        yield found
    finally:
        del torch.nn.Module.training


@contextmanager
def evaluating(model: "torch.nn.Module") -> Iterator[None]:
    """Under `model.eval()`; afterwards each module has its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
