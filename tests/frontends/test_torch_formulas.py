"""PyTorch's subgradients: at ties and kinks the gradient is torch's own."""

import numpy as np
import pytest
import torch
from helpers.oracles.torch_gradients import Weighted, ours, theirs
from helpers.oracles.torch_ties import POINTS, POINTWISE, TABLE
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from torch import nn

from pcp.frontends.torch import from_torch

NAMES = sorted(TABLE)
CHUNKS = [NAMES[i::4] for i in range(4)]


def _close(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max(initial=1.0))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * scale, err_msg=what)


@sampled("names", CHUNKS, 1, ids=range(4))
def test_values_and_gradients(names: list[str], interpreter: Interpreter) -> None:
    model = Weighted(*zip(*(TABLE[name] for name in names), strict=True))
    (_, *values), found = ours(interpreter, model)
    for name, value, wanted in zip(names, values, model()[1:], strict=True):
        _close(value, wanted.numpy(force=True), f"{name}: value")
    for name, ours_, theirs_ in zip(names, found, theirs(model), strict=True):
        _close(ours_, theirs_, name)


@pytest.mark.slow  # it exports all formulas at once again
def test_formulas_keep_what_is_not_finite(interpreter: Interpreter) -> None:
    points = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    # erf at inf: torch's own vector code gives NaN.
    names = [name for name in POINTWISE if name not in ("gelu",)]
    functions = [POINTWISE[name] for name in names]
    model = Weighted(functions, [points] * len(functions))
    (_, *values), _ = ours(interpreter, model)
    for name, value, wanted in zip(names, values, model()[1:], strict=True):
        np.testing.assert_allclose(
            value, wanted.numpy(force=True), rtol=1e-5, err_msg=name
        )


class Integers(nn.Module):
    """Remainders of integers, whose signs torch-mlir gets wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.w.sum(), i % 3, i % -3, i // 3, torch.remainder(i, torch.tensor(-3))


def test_remainders_of_integers(interpreter: Interpreter) -> None:
    i, model = torch.tensor([-7, -6, -1, 0, 1, 5, 7]), Integers()
    text = str(from_torch(model, i))
    found = interpreter.run(text, [np.ones(1, np.float32), i.numpy()])
    for value, wanted in zip(found[1:], model(i)[1:], strict=True):
        np.testing.assert_array_equal(value, wanted.numpy())


def test_points_are_where_the_conventions_differ() -> None:
    """The table would not see a shared tie if its points missed the kinks."""
    kinks = {0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, -0.5}
    assert kinks <= set(POINTS.tolist())


class FromTheEnd(nn.Module):
    """Indices below 0, as they are read, written, and as they take single elements."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(12.0).reshape(3, 4))

    def forward(self, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w, v = self.w, torch.tensor([0.5, -2.0, 3.0])
        written = w * 1
        written[:, j] = v
        added = w.index_put((i, j), v, accumulate=True)
        results = w[i], w[i, j], w[:, j], w[i[:, None], j], torch.take(w, j)
        results = *results, written, added, w[[-1, 0]]
        return sum((x**2).sum() for x in results), *results


def test_indices_count_from_the_end(interpreter: Interpreter) -> None:
    indices = torch.tensor([0, -1, -3]), torch.tensor([-1, 2, -4])
    model = FromTheEnd()
    (loss, *values), found = ours(interpreter, model, *indices)
    wanted = [x.numpy(force=True) for x in model(*indices)]
    for value, want in zip([loss, *values], wanted, strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-6)
    for value, want in zip(found, theirs(model, *indices), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-6)
