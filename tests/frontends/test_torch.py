"""from_torch: the exported program computes what PyTorch computes."""

import re

import pytest
import torch
from helpers.models.torch_examples import example
from helpers.servers.iree_server import Iree
from torch import Tensor, nn

from pcp.errors import IRError
from pcp.frontends.signature import arguments_of
from pcp.frontends.torch import from_torch, weights_of


@pytest.mark.slow  # test_gradient_parity.py has loss and gradient
@pytest.mark.parametrize(
    "name",
    # Slow: examples/torch_to_bundle.py compares the MLP, and is run by a test.
    [
        "gpt",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "cnn", "mlp")),
    ],
)
def test_loss_equals_torch_in_float32(name: str, iree: Iree) -> None:
    case = example(name)
    text = str(from_torch(case.model, *case.inputs))
    assert not re.findall(r"f64|arith\.|dynamic_|dense_resource", text)
    (loss,) = iree.run(text, case.arguments())
    assert loss == pytest.approx(case.loss(), rel=1e-6)


def test_names_and_roles_are_the_models_own() -> None:
    case = example("llama")
    arguments = arguments_of(from_torch(case.model, *case.inputs))
    parameters = [name for name, _ in case.model.named_parameters()]
    assert [a.name for a in arguments] == [*parameters, "ids", "targets"]
    roles = ["param"] * len(parameters) + ["data"] * 2
    assert [a.role for a in arguments] == roles
    by_name = {a.name: a.init for a in arguments}
    assert by_name["norm.weight"] == "ones"
    assert re.fullmatch(r"normal\(0\.0\d+\)", by_name["token.weight"] or "")
    assert by_name["ids"] is None


def test_a_tied_weight_is_one_argument() -> None:
    model = example("llama").model
    assert "token.weight" in weights_of(model)
    assert "head.weight" not in weights_of(model)


def test_weights_that_were_read_can_be_resized() -> None:
    """As FSDP does with them, and `Tensor.numpy` ends for ever."""
    model = nn.Linear(3, 2).to(torch.bfloat16)
    model.bias.data = model.bias.data.float()
    values = weights_of(model)
    for name, parameter in model.named_parameters():
        want = parameter.detach().float().tolist()
        assert values[name].tolist() == want
        parameter.untyped_storage().resize_(0)


def test_one_tensor_passed_twice_is_two_arguments(iree: Iree) -> None:
    # torch.export alone would make one of them and read it in both places.
    case = example("gpt")
    ids = case.inputs[0]
    (loss,) = iree.run(str(from_torch(case.model, ids, ids)), case.arguments())
    assert loss == pytest.approx(case.loss(), rel=1e-6)


class Norms(nn.Module):
    """Every op whose variance torch-mlir would compute in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(6)
        self.group = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.group(self.layer(x))
        spread = torch.var(y, (0, 2)) + torch.std(y, (0, 2), unbiased=False)
        return (y * spread[:, None]).sum() + torch.var_mean(x)[0]


@pytest.mark.slow  # a program more
def test_variances_stay_in_float32(iree: Iree) -> None:
    torch.manual_seed(0)
    model, x = Norms(), torch.randn(3, 4, 6)
    text = str(from_torch(model, x))
    assert "f64" not in text
    arguments = [*weights_of(model).values(), x.numpy()]
    assert iree.run(text, arguments)[0] == pytest.approx(model(x).item(), rel=1e-5)


class WithBuffers(nn.Module):
    """Buffers of several dtypes, one frozen parameter."""

    mask: Tensor
    order: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("scale", torch.tensor([0.5, -1.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        picked = (x * self.weight)[self.order].masked_fill(self.mask, 3.0)
        return (picked * self.scale + self.frozen).sum()


def test_small_buffers_are_constants(iree: Iree) -> None:
    torch.manual_seed(0)
    model, x = WithBuffers(), torch.randn(3)
    module = from_torch(model, x)
    assert [a.name for a in arguments_of(module)] == ["weight", "frozen", "x"]
    arguments = [p.detach().numpy() for p in (model.weight, model.frozen)]
    (result,) = iree.run(str(module), [*arguments, x.numpy()])
    assert result == pytest.approx(model(x).item(), rel=1e-6)


class DependsOnData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum() if x.sum() > 0 else x.prod()


def test_what_torch_cannot_export_is_one_error() -> None:
    with pytest.raises(IRError, match=r"torch\.export cannot export this model: ") as e:
        from_torch(DependsOnData(), torch.ones(3))
    assert "\n" not in str(e.value)


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1.0).sum()


def test_locations_are_the_users_lines() -> None:
    from pcp.dialect.diagnostics import location_string

    module = from_torch(Summed(), torch.ones(4))
    op = module.body.operations[0].regions[0].blocks[0].operations[-2]
    assert re.search(r"test_torch\.py:\d+:\d+$", location_string(op.location))
