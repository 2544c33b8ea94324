"""Objectives that stop gradients train as in PyTorch, through IREE."""

import numpy as np
import pytest
import torch
from helpers.models.torch_objectives import Objectives
from helpers.oracles.torch_gradients import theirs

import pcp
from pcp.frontends.torch import weights_of


@pytest.mark.slow  # ten seconds of IREE: test_torch_stops.py has each stop
def test_gradients_equal_torch() -> None:
    model = Objectives()
    x = torch.randn(6, 4)
    module = pcp.from_torch(model, x)
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    program = pcp.Program.load(bundle, device="local-sync")
    loss, *found = program["grad"](*weights_of(model).values(), x.numpy())

    np.testing.assert_allclose(loss, model(x).item(), rtol=1e-5)
    names = [name for name, _ in model.named_parameters()]
    wanted = dict(zip(names, theirs(model, x), strict=True))
    without = [n for n in names if "teacher" in n or "target" in n]
    assert all(not wanted.pop(name).any() for name in without)
    for (name, gradient), ours in zip(wanted.items(), found, strict=True):
        scale = np.abs(gradient).max()
        assert scale > 0, f"{name}: a zero gradient shows nothing"
        np.testing.assert_allclose(ours, gradient, atol=1e-5 * scale, err_msg=name)
