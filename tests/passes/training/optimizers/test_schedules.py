"""The learning rate against its closed form, at every step."""

import math

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.learning_rate import rate
from pcp.manifest import Method
from pcp.passes.core.functions import Port, define
from pcp.passes.training.optimizers import spec
from pcp.passes.training.optimizers.schedules import learning_rate

STEPS = np.arange(1, 121)


def rates(interpreter: Interpreter, text: str) -> np.ndarray:
    """The rate at each of STEPS: a schedule is elementwise in the step."""
    optimizer = spec.parse(text)
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        type_ = hlo.tensor([len(STEPS)], ir.F32Type.get())
        result = Port("lr", "result", type_)
        define(
            module,
            "main",
            [Port("step", "data", type_)],
            lambda step: [(result, learning_rate(optimizer, step))],
        )
        program = str(module)
    return interpreter.run(program, [STEPS.astype(np.float32)])[0]


def cosine(k: int) -> float:
    if k <= 10:
        return 0.5 * k / 10
    q = min(1.0, (k - 10) / 90)
    return 0.1 + 0.4 * (1 + math.cos(math.pi * q)) / 2


def wsd(k: int) -> float:
    if k <= 5:
        return 0.5 * k / 5
    return 0.5 - 0.4 * min(1.0, max(0.0, (k - 70) / 30))


def wsd_default_decay(k: int) -> float:
    return 0.5 * (1 - min(1.0, max(0.0, (k - 80) / 20)))


CASES = {
    "sgd{lr=0.5}": lambda k: 0.5,
    "sgd{lr=0.5,warmup_steps=8}": lambda k: 0.5 * min(1.0, k / 8),
    "sgd{lr=0.5,schedule=warmup_cosine,warmup_steps=10,total_steps=100,min_lr=0.1}": (
        cosine
    ),
    (
        "sgd{lr=0.5,schedule=wsd,warmup_steps=5,total_steps=100,decay_steps=30,"
        "min_lr=0.1}"
    ): wsd,
    "sgd{lr=0.5,schedule=wsd,total_steps=100}": wsd_default_decay,
}


@pytest.mark.parametrize("text", CASES)
def test_closed_form(interpreter: Interpreter, text: str) -> None:
    wanted = [CASES[text](int(k)) for k in STEPS]
    np.testing.assert_allclose(rates(interpreter, text), wanted, rtol=0, atol=2e-7)
    shown = [rate(_optimizer(text), int(k)) for k in STEPS]
    np.testing.assert_allclose(np.array(shown, float), wanted, rtol=1e-12)


def _optimizer(text: str) -> Method:
    made = spec.parse(text)
    return Method(kind=made.kind, hyper=made.hyper())


def test_a_rate_that_is_not_known_is_not_guessed() -> None:
    falls = _optimizer("sgd{lr=0.5,schedule=wsd,total_steps=100}")
    assert rate(falls, None) is None
    assert rate(falls.model_copy(update={"hyper": {"lr": 0.5}}), 3) is None
    mine = falls.hyper | {"schedule": "mine"}
    assert rate(falls.model_copy(update={"hyper": mine}), 3) is None
    assert rate(_optimizer("sgd{lr=0.5}"), None) == 0.5
    assert rate(None, 3) is None
