"""from_torch: what a model writes, what it only reads, and what it trains."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pcp
from pcp.errors import IRError, UsageError
from pcp.frontends.pytorch import state as torch_state
from pcp.frontends.signature import arguments_of, results_of
from pcp.frontends.torch import from_torch, values_of


class Net(nn.Module):
    """Batch norm, an average written by hand, a frozen head, and an accuracy."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2).requires_grad_(False)
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        logits = self.head(h)
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * logits.mean(0))
        loss = nn.functional.cross_entropy(logits, labels)
        return loss, (logits.argmax(1) == labels).float().mean()


def _net() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 1, 0])


def test_roles_and_first_values() -> None:
    model, *inputs = _net()
    module = from_torch(model, *inputs)
    trained = ["conv.weight", "conv.bias", "norm.weight", "norm.bias"]
    stats = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    found = {a.name: (a.role, a.init) for a in arguments_of(module)}
    roles = {name: role for name, (role, _) in found.items()}
    assert roles == {
        **dict.fromkeys(trained, "param"),
        "head.weight": "frozen",
        "head.bias": "frozen",
        "average": "state",
        **dict.fromkeys(stats, "state"),
        "x": "data",
        "labels": "data",
    }
    inits = [found[n][1] for n in ("average", *stats, "head.weight")]
    assert inits == ["zeros", "zeros", "ones", "zeros", None]
    results = [(r.name, r.role) for r in results_of(module)]
    assert results[:2] == [("loss", "loss"), ("metric1", "metric")]
    assert {name for name, role in results[2:]} == {"average", *stats}


@pytest.mark.slow  # test_evaluation.py trains such a model
def test_a_step_is_torchs() -> None:
    model, x, labels = _net()
    module = from_torch(model, x, labels)
    names = [r.name for r in results_of(module)][2:]
    given = [*values_of(model, module).values(), x.numpy(), labels.numpy()]
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    with pcp.Program.load(bundle, device="local-sync") as program:
        found = [np.array(x) for x in program["grad"](*given)]
    loss, accuracy = model(x, labels)
    loss.backward()
    assert found[0] == pytest.approx(loss.item(), rel=1e-6)
    assert found[1] == accuracy.item()
    buffers: dict[str, Any] = dict(model.named_buffers())
    for name, value in zip(names, found[2:], strict=False):
        np.testing.assert_allclose(value, buffers[name].numpy(), rtol=1e-5, atol=1e-7)
    wanted = [p.grad for p in model.parameters() if p.requires_grad]
    for gradient, value in zip(wanted, found[2 + len(names) :], strict=True):
        assert gradient is not None
        np.testing.assert_allclose(value, gradient.numpy(), rtol=1e-4, atol=1e-6)


def test_in_eval_mode_nothing_is_written() -> None:
    model, *inputs = _net()
    model.norm.eval()
    names = [r.name for r in results_of(from_torch(model, *inputs))]
    assert names == ["loss", "metric1", "average"]


class Table(nn.Module):
    """A buffer that is read, and one that no seed makes."""

    table: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("table", torch.arange(8.0))
        self.register_buffer("seen", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen += x
        return (self.weight * self.table * x).sum()


def test_a_large_buffer_is_frozen_and_no_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_state, "MAX_CONSTANT_BYTES", 16)
    found = {a.name: (a.role, a.init) for a in arguments_of(_table())}
    assert found["table"] == ("frozen", None)
    assert found["seen"] == ("state", "given")


def test_a_small_one_is_a_constant() -> None:
    assert [a.name for a in arguments_of(_table())] == ["weight", "seen", "x"]


def _table() -> Any:
    return from_torch(Table(), torch.ones(8))


@pytest.mark.slow  # three exports
def test_what_becomes_of_state_may_be_declared() -> None:
    model, *inputs = _net()
    rule = {"*.num_batches_tracked": "sum"}
    text = str(from_torch(model, *inputs, average=rule))
    assert text.count("pcp.average") == text.count('pcp.average = "sum"') == 1
    with pytest.raises(UsageError, match=r"matches no state .there is: average, norm"):
        from_torch(model, *inputs, average={"head.*": "sum"})
    with pytest.raises(UsageError, match=r"none of mean, max, sum, first\. Did you"):
        from_torch(model, *inputs, average={"*": "maxi"})


class Writes(nn.Module):
    """Writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x.add_(1)).sum()


def test_other_writes_are_refused() -> None:
    with pytest.raises(IRError, match=r"writes its input .*@main has no side effects"):
        from_torch(Writes(), torch.ones(3, dtype=torch.int64))
