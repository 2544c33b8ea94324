"""Models of transformers without a wrapper: gradients and training as torch's."""

from collections.abc import Mapping

import numpy as np
import pytest

from pcp.errors import CompileError

pytest.importorskip("transformers")
pytest.importorskip("torch")

from helpers.models.zoo import ZOO, resnet18, sample
from helpers.oracles.torch_training import Trained, torch_steps

#: Run by `make test`: a decoder, an encoder, images.
FAST = ("gpt2-padded",)
#: What does not compile: the op, and whose fault it is. Of 20 models at most three.
FAILURES: Mapping[str, str] = {}
STEPS = 5


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [] if name in FAST else [pytest.mark.slow]
    if name in FAILURES:
        why, error = FAILURES[name], CompileError
        marks.append(pytest.mark.xfail(reason=why, raises=error, strict=True))
    return marks


MODELS = [pytest.param(name, marks=_marks(name)) for name in ZOO]


def test_few_failures_are_expected() -> None:
    assert len(FAILURES) <= 3
    assert FAILURES.keys() <= ZOO.keys()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_training_equal_torch(name: str) -> None:
    given = sample(name)
    trained = Trained.of(given.model, given.keywords)
    loss, gradients = trained.gradients()
    theirs = given.gradients()
    assert loss == pytest.approx(given.loss().item(), rel=1e-5)
    largest = max(float(np.abs(g).max()) for g in theirs.values())
    for key, expected in theirs.items():
        np.testing.assert_allclose(
            gradients[key], expected, rtol=0, atol=1e-5 * largest, err_msg=key
        )
    pairs = zip(trained.steps(), torch_steps(given.model, given.keywords), strict=False)
    for step, ((ours, _), (expected, _)) in zip(range(STEPS), pairs, strict=False):
        assert ours == pytest.approx(expected, rel=1e-4), f"step {step}"


@pytest.mark.slow
def test_resnet18_keeps_torchs_statistics() -> None:
    """In training mode, whose state it is that each of the steps leaves."""
    model, keywords = resnet18()
    pairs = zip(
        Trained.of(model, keywords).steps(), torch_steps(model, keywords), strict=False
    )
    for step, (ours, expected) in zip(range(20), pairs, strict=False):
        assert ours[0] == pytest.approx(expected[0], rel=1e-4), f"step {step}"
        assert ours[1], "no statistics"
        assert ours[1].keys() == expected[1].keys()
        for name, array in expected[1].items():
            message = f"step {step}: {name}"
            np.testing.assert_allclose(
                ours[1][name], array, 1e-5, 1e-5, err_msg=message
            )
