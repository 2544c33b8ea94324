"""Gradients that pcp derives and IREE runs, against PyTorch's and JAX's own."""

import jax
import numpy as np
import pytest
from helpers.models.jax_training import CASES
from helpers.models.torch_examples import example

import pcp
from pcp.frontends.torch import from_torch, trained_parameters


@pytest.mark.parametrize(
    "name",
    # The others take 10 s, and tests/autodiff/test_programs.py has them as of JAX.
    [
        "mlp",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "gpt", "cnn")),
    ],
)
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


@pytest.mark.parametrize(
    "name",
    # Slow: tests/autodiff/test_programs.py has a GPT, a Llama and a CNN that jax made.
    [pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_gradients_equal_jax(name: str) -> None:
    loss_of, params, batch = CASES[name]
    module = pcp.from_jax(loss_of, params, *batch)
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    program = pcp.Program.load(bundle, device="local-sync")
    loss, *gradients = program["grad"](*jax.tree.leaves(params), *batch)

    expected, theirs = jax.jit(jax.value_and_grad(loss_of))(params, *batch)
    assert loss == pytest.approx(float(expected), rel=1e-6)
    for (path, other), ours in zip(
        jax.tree_util.tree_leaves_with_path(theirs), gradients, strict=True
    ):
        scale = np.abs(other).max()
        assert scale > 0, f"{path}: a zero gradient shows nothing"
        np.testing.assert_allclose(ours, other, atol=1e-5 * scale, err_msg=str(path))
