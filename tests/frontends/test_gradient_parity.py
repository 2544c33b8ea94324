"""Gradients that pcp derives and IREE runs, against PyTorch's autograd."""

import numpy as np
import pytest
from helpers.example_models import example

import pcp
from pcp.frontends.torch import from_torch, trained_parameters


@pytest.mark.parametrize("name", ["gpt", "llama", "cnn", "mlp"])
def test_gradients_equal_torch(name: str) -> None:
    case = example(name)
    module = from_torch(case.model, *case.inputs)
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    program = pcp.Program.load(bundle, device="local-sync")
    loss, *gradients = program["grad"](*case.arguments())

    assert loss == pytest.approx(case.loss(), rel=1e-6)
    names = trained_parameters(case.model)
    for key, ours, theirs in zip(names, gradients, case.gradients(), strict=True):
        scale = np.abs(theirs).max()
        assert scale > 0, f"{key}: a zero gradient shows nothing"
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * scale, err_msg=key)
