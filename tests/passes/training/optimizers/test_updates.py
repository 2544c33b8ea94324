"""@apply against torch.optim, step by step, on IREE."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import (
    CLEAN,
    expanded,
    model,
    program,
    tensors,
    worst,
)
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter

from pcp.compiler import emission, iree, targets

torch = pytest.importorskip("torch")

STEPS = 20
INPLACE = f"{CLEAN},pcp-verify-inplace"


def adamw(**options: Any) -> Callable[..., Any]:
    return lambda params: torch.optim.AdamW(params, **options)


def sgd(**options: Any) -> Callable[..., Any]:
    return lambda params: torch.optim.SGD(params, **options)


# Our text, torch's optimizer, the norm to clip to (0: none).
CASES = {
    "adamw": ("adamw{lr=0.01}", adamw(lr=0.01, weight_decay=0.01), 0),
    "adamw_all": (
        "adamw{lr=0.02,beta1=0.8,beta2=0.95,eps=1e-6,weight_decay=0.1,clip_norm=1.0}",
        adamw(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        1.0,
    ),
    "adamw_plain": (
        "adamw{lr=0.01,weight_decay=0,beta1=0}",
        adamw(lr=0.01, weight_decay=0.0, betas=(0.0, 0.999)),
        0,
    ),
    "sgd": ("sgd{lr=0.1}", sgd(lr=0.1), 0),
    "sgd_momentum": (
        "sgd{lr=0.05,momentum=0.9,weight_decay=0.1}",
        sgd(lr=0.05, momentum=0.9, weight_decay=0.1),
        0,
    ),
    "nesterov": (
        "nesterov{lr=0.05,momentum=0.8,weight_decay=0.1,clip_norm=0.5}",
        sgd(lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
        0.5,
    ),
}


def theirs(make: Callable[..., Any], clip: float, start: list, gradients: list) -> list:
    """The parameters after each step, by torch."""
    params = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    optimizer = make(params)
    trajectory = []
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g)
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()
        trajectory.append([p.detach().numpy().copy() for p in params])
    return trajectory


def ours(text: str, start: list, gradients: list) -> list:
    """The parameters after each step, by @apply on the device."""
    module = expanded(model(), text, after=INPLACE, keep=["apply"])
    with program(module) as loaded:
        signature = loaded["apply"].signature
        state = [
            loaded.to_device(np.zeros(t.shape, _numpy(t.dtype)), t.dtype)
            for t in (signature.inputs[i] for i in signature.inputs_of("state"))
        ]
        params = [loaded.to_device(p) for p in start]
        trajectory = []
        for step in gradients:
            results = loaded["apply"](*params, *step, *state, device_arrays=True)
            params, state = results[: len(params)], results[len(params) :]
            trajectory.append([p.numpy() for p in params])
        assert state[-1].numpy() == len(gradients)
        return trajectory


def _numpy(dtype: str) -> Any:
    return {"f32": np.float32, "i32": np.int32}[dtype]


@sampled("name", CASES, 2)
def test_twenty_steps_equal_torch(name: str) -> None:
    text, make, clip = CASES[name]
    generator = np.random.default_rng(1)
    start = tensors(generator)
    gradients = [tensors(generator) for _ in range(STEPS)]
    found = ours(text, start, gradients)
    wanted = theirs(make, clip, start, gradients)
    errors = [worst(f, w) for f, w in zip(found, wanted, strict=True)]
    assert max(errors) < 1e-6
    assert worst(found[-1], start) > 0.05  # it moved


def test_double_precision_stays_double(interpreter: Interpreter) -> None:
    """In the interpreter: IREE narrows doubles unless it is told not to."""
    text, make, clip = CASES["adamw_all"]
    generator = np.random.default_rng(2)
    start = tensors(generator, np.float64)
    gradients = [tensors(generator, np.float64) for _ in range(STEPS)]
    module = expanded(model("f64"), text, keep=["apply"])
    source = str(module).replace("@apply", "@main")
    values = [*start, *(np.zeros_like(p) for p in [*start, *start]), np.int32(0)]
    for step in gradients:
        values = interpreter.run(source, [*values[:3], *step, *values[3:]])
    assert worst(values[:3], theirs(make, clip, start, gradients)[-1]) < 1e-13


def test_tiny_gradients_meet_epsilon_as_in_torch() -> None:
    """eps stands outside the corrected root: at |g| near eps that shows."""
    text, make, clip = CASES["adamw"]
    generator = np.random.default_rng(3)
    start = tensors(generator)
    gradients = [tensors(generator, scale=1e-8) for _ in range(STEPS)]
    wanted = theirs(make, clip, start, gradients)
    assert worst(ours(text, start, gradients)[-1], wanted[-1]) < 1e-6


def test_decay_by_rank() -> None:
    """With decay_min_rank=2 only the matrix is decayed; no gradient, no other move."""
    start = [np.ones(shape, np.float32) for shape in ((3, 5), (5,), ())]
    zeros = [np.zeros_like(p) for p in start]
    text = "adamw{lr=0.1,weight_decay=0.5,decay_min_rank=2}"
    w, b, s = ours(text, start, [zeros])[0]
    np.testing.assert_allclose(w, np.full((3, 5), 0.95), rtol=1e-6)
    assert (b == 1).all()
    assert s == 1


def test_exploded_gradients_are_clipped_to_nothing() -> None:
    """Where the norm overflows, torch's factor is 0, and so are all moments."""
    text, make, clip = CASES["adamw_all"]
    start = [np.ones(shape, np.float32) for shape in ((3, 5), (5,), ())]
    gradients = [[np.full_like(p, 1e30) for p in start]] * 2
    wanted = theirs(make, clip, start, gradients)
    assert worst(ours(text, start, gradients)[-1], wanted[-1]) < 1e-6


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_a_tensor_is_updated_by_one_kernel(name: str, dtype: str) -> None:
    """Two would read and write twice, and in place cost copies between them."""
    module = expanded(model(dtype), CASES[name][0], after=INPLACE, keep=["apply"])
    target = targets.find("cpu:host")
    source = emission.target_text(module, target).plain
    flags = [*target.flags, "--compile-to=flow"]
    flow = iree.compile_text(source, flags, timeout=60).decode()
    kernels = re.findall(r"flow.executable.export public @(\w+)", flow)
    wide = [k for k in kernels if "elementwise_" in k and "reduction" not in k]
    assert len(wide) == 2, kernels  # the matrix and the vector
