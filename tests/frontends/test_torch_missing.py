"""Ops that torch-mlir lacks: their formulas have torch's values and gradients."""

import numpy as np
import pytest
import torch
from helpers.oracles.torch_gradients import Weighted, ours, theirs
from helpers.servers.interpreter import Interpreter
from torch import Tensor, nn

from pcp.errors import IRError
from pcp.frontends.pytorch.missing import Missing
from pcp.frontends.torch import from_torch

NAN = float("nan")


def attended(x: Tensor) -> Tensor:
    """As GPT-2 of transformers has it: a view right behind attention."""
    q, k, v = x.split(4, -1)
    q, k, v = (t.view(2, 3, 2, 2).transpose(1, 2) for t in (q, k, v))
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).contiguous().view(-1, 4)


def permuted(x: Tensor) -> Tensor:
    """A permutation undone by one that is written into an empty tensor."""
    order = torch.argsort(x.detach())
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    filled = torch.empty(4)
    filled[:] = 2.0
    return x[order][inverse] * filled


CASES = [
    (attended, torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0))),
    (permuted, torch.tensor([3.0, 1.0, 4.0, 2.0])),
]


def test_values_and_gradients_are_torchs(interpreter: Interpreter) -> None:
    model = Weighted(*zip(*CASES, strict=True))
    (_, *results), gradients = ours(interpreter, model)
    for (function, value), found in zip(CASES, results, strict=True):
        np.testing.assert_allclose(found, function(value).detach(), rtol=1e-5)
    for found, expected in zip(gradients, theirs(model), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([0.0, 0.5, 2.0, 2.1, -1, NAN], (4, 0, 2)),
        ([1.0, 2.0, 2.5, 4.0], (3,)),
        ([2.0, 2.0], (3,)),
    ],
)
def test_a_histogram_counts_as_torch_does(values, options) -> None:
    x = torch.tensor(values)
    assert Missing(torch).histc(x, *options).tolist() == x.histc(*options).tolist()


def test_rows_are_multiplied_by_the_matrix_of_their_group() -> None:
    """torch's own op takes bf16 alone, so here it is the formula that is compared."""
    torch.manual_seed(0)
    x, weights = torch.randn(5, 2), torch.randn(3, 2, 4)
    ends = torch.tensor([2, 2, 4], dtype=torch.int32)
    found = Missing(torch).grouped_mm(x, weights, ends)
    expected = torch.cat([x[:2] @ weights[0], x[2:4] @ weights[2], torch.zeros(1, 4)])
    torch.testing.assert_close(found, expected)


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x).sum()  # the line that is named


def test_where_torch_mlir_stops_the_op_and_the_line_are_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = Bessel.forward.__code__.co_firstlineno + 1
    wanted = rf"^/\S*test_torch_missing\.py:{line}: torch-mlir stops at \S*bessel_j0: "
    with pytest.raises(IRError, match=wanted) as raised:
        from_torch(Bessel(), torch.ones(3))
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""
