"""Gradients of convolutional stems and blocks through IREE, beside torch's own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.models.torch_vision import STEMS, Stem
from helpers.oracles import torch_gradients as gradients
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter

import pcp
from pcp.frontends.torch import weights_of


def theirs(model: torch.nn.Module, images: torch.Tensor) -> list[np.ndarray]:
    """Loss, outputs and gradients in double precision."""
    loss, y = model(images)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [t.detach().numpy() for t in (loss, y, *gradients)]


#: An odd stem. Whole models compile for eight seconds and more each.
FAST = ("strided stem odd-cpu:host",)


def _cases() -> Iterator[Any]:
    """All, of which a few are fast."""
    for stem in STEMS:
        for target in ("cpu", "cpu:host"):
            name = f"{stem.name}-{target}"
            marks = () if name in FAST else pytest.mark.slow
            yield pytest.param(stem, target, marks=marks, id=name)


@pytest.mark.slow  # test_gradient_parity.py has a model of PyTorch
@pytest.mark.parametrize(("stem", "target"), list(_cases()))
def test_forward_and_gradient(stem: Stem, target: str) -> None:
    model, images = stem.built()
    wanted = theirs(model, images)
    module = pcp.from_torch(model.float(), images.float())
    bundle = pcp.compile(module, targets=[target], mode="grad")
    given = [*weights_of(model).values(), images.float().numpy()]
    with pcp.Program.load(bundle, "local-sync") as loaded:
        found = loaded["grad"](*given)
    for ours, right in zip(found, wanted, strict=True):
        largest = max(1e-3, float(np.abs(right).max()))
        np.testing.assert_allclose(ours, right, rtol=0, atol=stem.tolerance * largest)


UPSAMPLED = (
    {"scale_factor": 2.0, "mode": "nearest"},
    {"scale_factor": (3, 2), "mode": "nearest"},
    {"size": (8, 18), "mode": "nearest"},
    {"size": (7, 5), "mode": "nearest"},
    {"scale_factor": 1.5, "mode": "nearest"},
    {"scale_factor": 0.5, "mode": "nearest"},
    {"size": (7, 9), "mode": "bilinear"},
    {"scale_factor": 2, "mode": "bicubic"},
)


class Upsampled(torch.nn.Module):
    """A parameter as a larger or smaller image."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.w = how, torch.nn.Parameter(torch.randn(1, 2, 4, 6))

    def forward(self) -> torch.Tensor:
        y = torch.nn.functional.interpolate(self.w, **self.how)
        return (y * torch.cos(torch.arange(float(y.numel()))).reshape(y.shape)).sum()


@sampled(
    "how", UPSAMPLED, [UPSAMPLED[0], {"size": (7, 9), "mode": "bilinear"}], ids=str
)
def test_upsampling(how: dict[str, Any], interpreter: Interpreter) -> None:
    model = Upsampled(**how)
    _, (found,) = gradients.ours(interpreter, model)
    np.testing.assert_allclose(found, gradients.theirs(model)[0], 1e-5, 1e-5)
