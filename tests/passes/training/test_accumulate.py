"""A large batch in pieces inside the program: the mean of what the pieces give."""

import numpy as np
import pytest
from helpers.models.closed_form import BATCH, BLOCK, batches, text
from helpers.models.expanded_training import CLEAN, expanded, program
from helpers.models.token_batches import pair

from pcp.compiler import catalog, driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import ConfigError, PassError

PIECES = 3


@pytest.fixture(scope="module")
def both():
    """The model's own functions, and those for a batch of three."""
    own = expanded(text("quadratic"), after=CLEAN, keep=["main", "grad", "eval"])
    wide = expanded(
        text("quadratic"),
        after=f"pcp-accumulate{{batch={PIECES * BATCH}}},{CLEAN}",
        keep=["main", "grad", "eval"],
    )
    with program(own) as small, program(wide) as large:
        yield small, large


def test_loss_and_gradients_are_the_means_of_the_pieces(both) -> None:
    small, large = both
    draw = np.random.default_rng(0)
    params = [draw.standard_normal(BLOCK).astype(np.float32) for _ in range(2)]
    parts = batches(PIECES, 0)
    whole = [np.concatenate(each) for each in zip(*map(pair, parts), strict=True)]
    for name in ("grad", "eval"):
        found = large[name](*params, *whole)
        each = [small[name](*params, *pair(b)) for b in parts]
        if name == "eval":
            found, each = [found], [[value] for value in each]
        for i, value in enumerate(found):
            wanted = np.mean([np.asarray(e[i], np.float64) for e in each], axis=0)
            np.testing.assert_allclose(value, wanted, rtol=2e-6)


def test_the_borders_say_the_larger_batch(both) -> None:
    _, large = both
    data = [t for t in large["grad"].signature.inputs if t.role == "data"]
    assert [t.shape for t in data] == [(PIECES * BATCH, BLOCK)] * 2
    assert set(large.functions) == {"main", "grad", "eval"}


def test_what_cannot_be_cut_is_refused() -> None:
    module = expanded(text("linear"))
    with pytest.raises(PassError, match="5 is no multiple of the model's, which is 2"):
        catalog.pipeline("builtin.module(pcp-accumulate{batch=5})").run(module)
    with pytest.raises(ConfigError, match="samples of a training step"):
        CompileOptions(mode="forward", batch=4)


def test_an_option_of_compilation() -> None:
    options = CompileOptions(mode="train", optimizer="sgd", batch=8)
    found = driver.lower(parse(text("linear")), options).manifest
    shapes = {t.shape for t in found.function("grad").inputs if t.role == "data"}
    assert shapes == {(8, BLOCK)}
