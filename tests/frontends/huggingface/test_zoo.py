"""Models without a wrapper, most of transformers: gradients and training as torch's."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from pcp.errors import CompileError
from pcp.training.storage import safetensors_io
from pcp.training.trainer.draw_key import key_of

pytest.importorskip("transformers")
pytest.importorskip("torch")

from helpers.models import unet
from helpers.models.zoo import ZOO, Sample, resnet18, sample
from helpers.oracles.drawn_numbers import drawing
from helpers.oracles.torch_training import Trained, torch_steps
from safetensors.torch import load_file

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
    assert loss == pytest.approx(given.loss().item(), rel=1e-5)
    _check_gradients(gradients, given.gradients())
    pairs = zip(trained.steps(), torch_steps(given.model, given.keywords), strict=False)
    for step, ((ours, _), (expected, _)) in zip(range(STEPS), pairs, strict=False):
        assert ours == pytest.approx(expected, rel=1e-4), f"step {step}"


def _check_gradients(
    found: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]
) -> None:
    largest = max(float(np.abs(g).max()) for g in theirs.values())
    for key, expected in theirs.items():
        np.testing.assert_allclose(
            found[key], expected, rtol=0, atol=1e-5 * largest, err_msg=key
        )


def _gpt2() -> Sample:
    """In training mode, with its default dropout of 0.1."""
    model = copy.deepcopy(sample("gpt2").model).train()
    assert model.config.attn_pdrop == model.config.resid_pdrop == 0.1
    return Sample(model, sample("gpt2").keywords)


def _unet() -> Sample:
    return Sample(unet.model(), {"pictures": unet.pictures()})


@pytest.mark.slow  # a minute of IREE; test_torch_random.py has each draw
@pytest.mark.parametrize("made", [_gpt2, _unet])
def test_models_that_draw_are_torchs_with_the_same_numbers(
    made: Callable[[], Sample], tmp_path: Path
) -> None:
    """Masks of dropout and noise in the loss, other ones in each step."""
    keys = [key_of(3, position) for position in range(STEPS + 1)]
    given = made()
    trained = Trained.of(given.model, given.keywords).with_key(keys[0])
    loss, gradients = trained.gradients()
    with drawing(keys[0]):
        assert loss == pytest.approx(given.loss().item(), rel=1e-5)
    with drawing(keys[0]):
        _check_gradients(gradients, given.gradients())
    theirs = torch_steps(given.model, given.keywords)
    for step, key in enumerate(keys[:STEPS]):
        loss, trained = trained.with_key(key).step()
        with drawing(key):
            expected, _ = next(theirs)
        assert loss == pytest.approx(expected, rel=1e-4), f"step {step}"
    # What is saved then is read by torch, and computes the same.
    with open(tmp_path / "saved.safetensors", "wb") as file:
        safetensors_io.write(file, trained.named("param"))
    given.model.load_state_dict(load_file(tmp_path / "saved.safetensors"), strict=False)
    loss, _ = trained.with_key(keys[STEPS]).gradients()
    with drawing(keys[STEPS]):
        assert loss == pytest.approx(given.loss().item(), rel=1e-5)


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
