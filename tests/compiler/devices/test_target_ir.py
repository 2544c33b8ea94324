"""Before IREE sees it, a program for each kind of device is still the model.

pcp-vjp ─► all passes for the target ─► reference interpreter, equal to jax at 1e-4
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.models import jax_small, sequence, vision
from helpers.oracles.jax_gradients import (
    as_given,
    assert_near,
    lowered,
    reference_vjp,
    transformed,
    wrt_option,
)
from helpers.oracles.target_ir import for_interpreter
from helpers.servers.interpreter import Interpreter

TARGETS = ("sm_80", "sm_90a", "gfx942", "vulkan")
ZOO = {
    case.name: replace(case, close=assert_near, tolerance=1e-4)
    for models in (jax_small, sequence, vision)
    for case in models.PROGRAMS
}
QUICK = ("mlp", "cnn", "graph", "physics")
#: What the interpreter ends the process on: `rng_bit_generator`, and an `fft` of reals.
NOT_INTERPRETED = ("dropout", "spectral")
REST = [name for name in ZOO if name not in {*QUICK, *NOT_INTERPRETED}]

Arrays = tuple[np.ndarray, ...]


@cache
def _wanted(name: str) -> tuple[str, Arrays, Arrays]:
    """(the program of the gradient, its arguments, jax's results)."""
    case = ZOO[name]
    results, seeds, gradients = reference_vjp(case)
    text = transformed(lowered(case), f"pcp-vjp{{{wrt_option(case)}}}")
    arguments = [as_given(x) for x in case.args]
    return text, (*arguments, *seeds), (*results, *gradients)


def _found(text: str, arguments: Arrays, interpreter: Interpreter) -> Arrays:
    """The interpreter's results; targets of the same passes share them."""
    key = text, *(a.tobytes() for a in arguments)
    if key not in _KNOWN:
        _KNOWN[key] = tuple(interpreter.run(text, arguments))
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], Arrays] = {}


def check(name: str, target: str, interpreter: Interpreter) -> None:
    """What IREE is given for the target computes jax's results and gradients."""
    text, arguments, wanted = _wanted(name)
    found = _found(for_interpreter(text, target), arguments, interpreter)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        ZOO[name].compare(a, b, ZOO[name].tolerance, f"{target}: value {i}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", QUICK)
def test_a_gradient(name: str, target: str, interpreter: Interpreter) -> None:
    check(name, target, interpreter)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REST)
def test_every_gradient(name: str, target: str, interpreter: Interpreter) -> None:
    check(name, target, interpreter)


def test_a_wrong_pass_would_be_seen(interpreter: Interpreter) -> None:
    text, arguments, wanted = _wanted("mlp")
    wrong = for_interpreter(text, "vulkan").replace("stablehlo.tanh", "stablehlo.cbrt")
    wrong = wrong.replace("stablehlo.maximum", "stablehlo.minimum")
    found = interpreter.run(wrong, arguments)
    with pytest.raises(AssertionError):
        assert_near(found[0], wanted[0], 1e-4, "mlp")
