"""Random ops of PyTorch: the bits are JAX's of the same key, and what is made of them
is torch's."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.oracles.drawn_numbers import drawing, uniform
from helpers.sampled import sampled
from helpers.servers.evaluator import Evaluator
from helpers.servers.iree_server import Iree
from torch import Tensor, nn

import pcp
from pcp.errors import IRError
from pcp.frontends.signature import arguments_of
from pcp.frontends.torch import from_torch, values_of

KEY = np.array([123, 456], np.uint32)


T, D, V = 8, 16, 11


class Gpt(nn.Module):
    """One block of attention with dropout everywhere, for tokens."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.embed, self.mix = nn.Embedding(V, D), nn.Linear(D, 3 * D)
        self.out, self.head = nn.Linear(D, D), nn.Linear(D, V)
        self.drop = nn.Dropout(p)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=p, is_causal=True
        )

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.drop(self.embed(ids))
        q, k, v = self.mix(x).split(D, -1)
        x = x + self.drop(self.out(self.attend(q, k, v)))
        loss = nn.functional.cross_entropy
        return loss(self.head(x).view(-1, V), targets.view(-1))


def _data() -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(0)
    ids, targets = (torch.tensor(draw.integers(0, V, (4, T))) for _ in range(2))
    return ids, targets


@pytest.mark.slow  # it compiles many
def test_gradients_with_dropout_equal_torchs_given_the_same_masks() -> None:
    torch.manual_seed(0)
    model, (ids, targets) = Gpt(0.1), _data()
    module = from_torch(model, ids, targets)
    assert [(a.name, a.role) for a in arguments_of(module)][-1] == ("rng", "key")
    given = [*values_of(model, module).values(), ids.numpy(), targets.numpy(), KEY]
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    with pcp.Program.load(bundle, device="local-sync") as program:
        loss, *found = [np.array(x) for x in program["grad"](*given)]
    with drawing(KEY):
        wanted = model(ids, targets)
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    for value, (name, parameter) in zip(found, model.named_parameters(), strict=True):
        gradient = parameter.grad
        assert gradient is not None
        scale = float(gradient.abs().max())
        np.testing.assert_allclose(value, gradient, atol=1e-5 * scale, err_msg=name)


class Drawn(nn.Module):
    """What each op draws, as results."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


def _drawn(evaluator: Evaluator, draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    text = str(from_torch(Drawn(draw), torch.ones(shape)))
    (found,) = evaluator.run(text, [np.ones(shape, np.float32), KEY])
    return np.asarray(found)


N = 40_000


@sampled(
    "draw, mean, spread",
    [
        (lambda x: nn.functional.dropout(x, 0.1), 1.0, (0.1 / 0.9) ** 0.5),
        (lambda x: torch.rand_like(x), 0.5, 12**-0.5),
        (lambda x: torch.randn(x.shape) * x, 0.0, 1.0),
        (lambda x: torch.normal(2.0 * x, 3.0), 2.0, 3.0),
        (lambda x: torch.bernoulli(0.3 * x), 0.3, (0.3 * 0.7) ** 0.5),
        (lambda x: x.new_empty(x.shape).bernoulli_(0.9), 0.9, 0.3),
        (lambda x: x * torch.randint(2, 12, x.shape), 6.5, (99 / 12) ** 0.5),
        (lambda x: torch.empty_like(x).exponential_(2.0) * x, 0.5, 0.5),
        (lambda x: torch.empty_like(x).uniform_(-1.0, 3.0) * x, 1.0, 4 * 12**-0.5),
    ],
    2,
)
def test_each_op_has_its_distribution(
    iree: Iree, draw: Any, mean: float, spread: float
) -> None:
    found = _drawn(iree, draw, (N,)).astype(np.float64)
    assert abs(found.mean() - mean) < 3 * spread / N**0.5
    assert found.std() == pytest.approx(spread, rel=0.02)


def test_the_numbers_are_those_of_jax(interpreter: Evaluator) -> None:
    found = _drawn(interpreter, lambda x: x * torch.rand(x.shape), (3, 5))
    np.testing.assert_array_equal(found, uniform(0, (3, 5), KEY).numpy())


def test_two_ops_draw_apart(interpreter: Evaluator) -> None:
    found = _drawn(interpreter, lambda x: torch.rand(4) - torch.rand(4) + 0 * x, (4,))
    assert np.all(found != 0)


@pytest.mark.slow  # 4,000 draws
def test_multinomial_draws_by_weight(interpreter: Evaluator) -> None:
    def draw(x: Tensor) -> Tensor:
        weights = torch.tensor([0.0, 1.0, 3.0]).expand(4000, 3)
        return torch.multinomial(weights, 1).float() * x

    found = _drawn(interpreter, draw, (4000, 1))
    assert set(np.unique(found)) == {1.0, 2.0}
    assert abs((found == 2).mean() - 0.75) < 3 * (0.75 * 0.25 / 4000) ** 0.5


def test_in_eval_mode_nothing_is_drawn() -> None:
    names = [a.role for a in arguments_of(from_torch(Gpt(0.1).eval(), *_data()))]
    assert "key" not in names


def test_what_is_not_read_is_refused_where_it_stands() -> None:
    with pytest.raises(IRError, match=r"test_torch_random\.py:\d+: .*randperm.*random"):
        from_torch(Drawn(lambda x: x[torch.randperm(4)]), torch.ones(4))
