"""The PyTorch models under examples/models, small, with random inputs."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

MODELS = Path(__file__).parents[3] / "examples" / "models"


@cache
def source(name: str) -> ModuleType:
    """The module `examples/models/<name>.py`."""
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Example:
    """A model with one batch."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]

    def arguments(self) -> list[np.ndarray]:
        """What `@main` takes: parameters, then the batch."""
        tensors = [*self.model.parameters(), *self.inputs]
        return [tensor.detach().numpy() for tensor in tensors]

    def loss(self) -> float:
        """PyTorch's own."""
        return self.model(*self.inputs).item()

    def gradients(self) -> list[np.ndarray]:
        """PyTorch's own, in the order of the parameters."""
        parameters = list(self.model.parameters())
        found = torch.autograd.grad(self.model(*self.inputs), parameters)
        return [gradient.numpy() for gradient in found]


def _tokens(model: torch.nn.Module, batch: int, time: int) -> Example:
    shape, generator = (2, batch, time), torch.Generator().manual_seed(1)
    ids, targets = torch.randint(256, shape, generator=generator)
    return Example(model, (ids, targets))


def _labelled(model: Any, batch: int) -> Example:
    generator = torch.Generator().manual_seed(1)
    images, labels = model.example_inputs(batch, 1)
    images = torch.randn(images.shape, generator=generator)
    labels = torch.randint(10, labels.shape, generator=generator)
    return Example(model, (images, labels))


def example(name: str) -> Example:
    """One of `gpt`, `mlp`, `cnn`, `llama`, with seeded weights and inputs."""
    torch.manual_seed(0)
    make: dict[str, Any] = {
        "gpt": lambda: _tokens(source("nanogpt_small").GPT(block_size=16), 4, 16),
        "mlp": lambda: _labelled(source("mlp").MLP(), 8),
        "cnn": lambda: _labelled(source("cnn").CNN(), 4),
        "llama": lambda: _tokens(source("llama_block").Llama(), 4, 16),
    }
    return make[name]()
