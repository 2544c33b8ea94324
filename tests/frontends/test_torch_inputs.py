"""What a model is called with, and which part of what it returns is the program's."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from helpers.servers.interpreter import Interpreter
from torch import Tensor, nn

from pcp.errors import IRError, UsageError
from pcp.frontends.pytorch.inputs import call_of, chosen
from pcp.frontends.signature import arguments_of, require_scalar_loss
from pcp.frontends.torch import from_torch


class Takes(nn.Module):
    """Any arguments; only their names matter."""

    def forward(self, x: Any, /, y: Any = None, *rest: Any, z: Any = None) -> None:
        pass


ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("args", "keywords", "names"),
    [
        ((ONE, TWO), {}, ("x", "y")),
        ((ONE, None, TWO), {"z": ONE}, ("x", "input2", "z")),
        ((ONE,), {"z": TWO, "y": 3, "on": True}, ("x", "z")),
        (({"image": ONE, "label": TWO},), {}, ("image", "label")),
        ((UserDict(image=ONE),), {}, ("image",)),
        (({"text": {"ids": ONE}},), {"z": {"ids": TWO}}, ("text.ids", "ids")),
        (({"ids": ONE},), {"z": {"ids": TWO}}, ("x.ids", "z.ids")),
        (([ONE, (TWO,)],), {}, ("x.0", "x.1.0")),
    ],
)
def test_names_are_those_that_the_caller_sees(args, keywords, names) -> None:
    assert call_of(Takes(), args, keywords).names == names


def test_an_object_with_tensors_is_refused_by_its_name() -> None:
    @dataclass
    class Batch:
        image: Tensor

    with pytest.raises(IRError, match=r"argument x is a Batch, .*pass tensors"):
        call_of(Takes(), (Batch(ONE),), {})


class Output(UserDict):
    """As transformers' outputs: a mapping with attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("loss", "logits"):
            raise AttributeError(name)
        return self[name]


class Named(NamedTuple):
    """What a model of one's own may return."""

    logits: Tensor
    loss: Tensor


class AnyCache:
    """Keys and values."""


@pytest.mark.parametrize(
    ("returned", "result", "expected"),
    [
        ((ONE, TWO), None, (ONE, TWO)),
        ((ONE, TWO), 1, TWO),
        (Output(loss=ONE, logits=TWO), None, ONE),
        (Output(logits=TWO, cache=AnyCache(), loss=None), None, {"logits", "loss"}),
        (Output(loss=ONE, logits=TWO), "logits", TWO),
        (Named(TWO, ONE), None, ONE),
        (Named(TWO, ONE), "logits", TWO),
        (Named(TWO, ONE), 0, TWO),
        (Output(loss=None, logits=TWO), 0, TWO),
    ],
)
def test_the_loss_is_chosen_where_there_is_one(returned, result, expected) -> None:
    found = chosen(returned, result)
    assert (
        set(found) == expected
        if isinstance(expected, set)
        else found is expected or (found == expected)
    )


def test_a_result_that_is_not_there_is_an_error_that_lists_what_is() -> None:
    with pytest.raises(
        UsageError, match=r"Output of forward is without it; it has logits$"
    ):
        chosen(Output(loss=None, logits=TWO), "hidden")
    with pytest.raises(UsageError, match=r"Named of .* it has logits, loss$"):
        chosen(Named(TWO, ONE), "count")
    with pytest.raises(UsageError, match=r"result 2: forward returns 2"):
        chosen((ONE, TWO), 2)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(
        self, batch: dict[str, Tensor], scale: float = 1.0, mask: Tensor | None = None
    ) -> dict[str, Tensor | None]:
        y = batch["image"] * self.weight * scale
        y = y if mask is None else torch.where(mask, y, 0)
        return {"values": y, "loss": y.sum() + batch["label"].sum()}


def test_a_model_is_exported_as_it_is_called(interpreter: Interpreter) -> None:
    image, label = torch.tensor([3.0, 5.0]), torch.tensor([7.0])
    mask = torch.tensor([True, False])
    module = from_torch(
        Scaled(), {"image": image, "label": label}, mask=mask, scale=2.0
    )
    names = [a.name for a in arguments_of(module)]
    assert names == ["weight", "image", "label", "mask"]
    require_scalar_loss(module)
    given = [Scaled().weight, image, label, mask]
    (loss,) = interpreter.run(str(module), [v.detach().numpy() for v in given])
    assert loss == 13.0


def test_a_model_without_data_of_its_own_is_exported() -> None:
    """The weights of a large model are elsewhere: nothing is copied."""
    with torch.device("meta"):
        model = nn.Linear(1 << 20, 1 << 20)
    module = from_torch(model, torch.ones(1, 1 << 20), result=None)
    assert [a.init for a in arguments_of(module)] == [None, None, None]
