"""Stops inside the jvp rules of JAX functions, in loops and branches there.

What multiplies a tangent may be stopped. A stopped tangent has no transpose: JAX
raises, and so does the reverse mode here, where zero would be the silent answer.
"""

from typing import Any

import jax
import numpy as np
import pytest
from helpers.oracles.jax_gradients import assert_close, derived_module, transformed
from helpers.random_programs.jax_jvp_rules import ruled
from helpers.servers.interpreter import Interpreter

import pcp
from pcp.errors import MissingRule

GROUP = 10
POINTS = np.random.default_rng(5).uniform(-1.2, 1.2, (200, 3)).astype(np.float32)
#: A sample, and the other groups of 200 programs.
GROUPS = [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))]


@pytest.mark.parametrize("group", GROUPS)
def test_drawn_rules(group: int, interpreter: Interpreter) -> None:
    seeds = range(GROUP * group, GROUP * (group + 1))
    drawn, x = [ruled(seed) for seed in seeds], POINTS[seeds.start : seeds.stop]

    def fn(x: Any) -> Any:
        return sum(f(x[i]) for i, f in enumerate(drawn))

    theirs = transformed(jax.jit(jax.grad(fn)).lower(x).as_text())
    (wanted,) = interpreter.run(theirs, [x])
    text = str(pcp.from_jax(fn, x))
    _, found = interpreter.run(transformed(text, "pcp-grad"), [x])
    for i, seed in enumerate(seeds):
        assert_close(found[i], wanted[i], 1e-5, f"program {seed}")
    _, tangent = interpreter.run(transformed(text, "pcp-jvp"), [x, np.cos(x)])
    assert_close(tangent, np.sum(wanted * np.cos(x)), 1e-5, "tangent")


@pytest.mark.parametrize("group", GROUPS)
def test_drawn_rules_that_stop_a_tangent(group: int) -> None:
    for seed in range(GROUP * group, GROUP * (group + 1)):
        fn, x = ruled(seed, stopped=True), POINTS[seed]
        with pytest.raises(NotImplementedError, match="'stop_gradient'"):
            jax.make_jaxpr(jax.grad(fn))(x)
        text = str(pcp.from_jax(fn, x))
        with pytest.raises(MissingRule, match="rule of @function stops a tangent"):
            derived_module(text, "pcp-grad")


def test_a_stopped_tangent_has_a_forward_mode(interpreter: Interpreter) -> None:
    fn, x = ruled(0, stopped=True), POINTS[0]
    _, wanted = jax.jvp(fn, (x,), (np.cos(x),))
    text = transformed(str(pcp.from_jax(fn, x)), "pcp-jvp")
    _, found = interpreter.run(text, [x, np.cos(x)])
    assert_close(found, np.asarray(wanted), 1e-5, "tangent")
