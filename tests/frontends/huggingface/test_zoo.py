"""Models of transformers without a wrapper: gradients and training as torch's."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import CompileError
from pcp.training.trainer.functions import Functions, Key

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from helpers.models.zoo import ZOO, Sample, sample  # noqa: E402  they import both

#: Run by `make test`: a decoder, an encoder, images.
FAST = ("gpt2-padded", "bert", "vit")
#: What does not compile: the op, and whose fault it is.
FAILURES = {
    "resnet18": "stablehlo.convolution, 7x7 by steps of 2 over small images: IREE's "
    "tiling infers another size than the operand has"
}
RATE, DECAY, STEPS = 1e-3, 0.1, 5
OPTIMIZER = f"adamw{{lr={RATE},weight_decay={DECAY}}}"


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [] if name in FAST else [pytest.mark.slow]
    if name in FAILURES:
        why, error = FAILURES[name], CompileError
        marks.append(pytest.mark.xfail(reason=why, raises=error, strict=True))
    return marks


MODELS = [pytest.param(name, marks=_marks(name)) for name in ZOO]


@dataclass(frozen=True)
class Trained:
    """A compiled training step of a model, and the values that it begins with."""

    functions: Functions
    values: dict[Key, Any]

    @staticmethod
    def of(given: Sample) -> "Trained":
        module = pcp.from_torch(given.model, **given.keywords)
        bundle = pcp.compile(
            module, ["cpu:host"], mode="train", optimizer=OPTIMIZER, algorithm="ddp"
        )
        program = pcp.Program.load(bundle, device="local-sync")
        values: dict[Key, Any] = {("data", k): v for k, v in given.arrays().items()}
        for name, p in given.model.named_parameters():
            role = "param" if p.requires_grad else "frozen"
            values[role, name] = p.detach().numpy()
        for state in program.manifest.functions["apply"].inputs:
            if state.role == "state":
                kind = np.dtype({"f32": "float32", "i32": "int32"}[state.dtype])
                values["state", state.name] = np.zeros(state.shape, kind)
        return Trained(Functions(program), values)

    def gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """The loss, and the gradient of each parameter."""
        found = self.functions("grad", self.values)
        grads = {n: np.asarray(v) for (role, n), v in found.items() if role == "grad"}
        return float(np.asarray(found["loss", "loss"])), grads

    def losses(self) -> Iterator[float]:
        """Of steps of the optimizer, each before its update."""
        values = dict(self.values)
        while True:
            found = self.functions("grad", values)
            yield float(np.asarray(found["loss", "loss"]))
            values |= self.functions("apply", {**values, **found})


def torch_losses(given: Sample) -> Iterator[float]:
    """As `Trained.losses`, by torch."""
    mine = Sample(copy.deepcopy(given.model), given.keywords)
    optimizer = torch.optim.AdamW(mine.model.parameters(), RATE, weight_decay=DECAY)
    while True:
        loss = mine.loss()
        yield loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_few_failures_are_expected() -> None:
    assert len(FAILURES) <= 3
    assert FAILURES.keys() <= ZOO.keys()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_training_equal_torch(name: str) -> None:
    given = sample(name)
    trained = Trained.of(given)
    loss, gradients = trained.gradients()
    theirs = given.gradients()
    assert loss == pytest.approx(given.loss().item(), rel=1e-5)
    largest = max(float(np.abs(g).max()) for g in theirs.values())
    for key, expected in theirs.items():
        np.testing.assert_allclose(
            gradients[key], expected, rtol=0, atol=1e-5 * largest, err_msg=key
        )
    pairs = zip(trained.losses(), torch_losses(given), range(STEPS), strict=False)
    for ours, expected, step in pairs:
        assert ours == pytest.approx(expected, rel=1e-4), f"step {step}"
