"""StableHLO's collectives against jax on the stacked arguments of all members."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from helpers.cases.replicas import BROADCAST, CASES, GROUPS, Collective, F, program
from helpers.oracles.jax_gradients import (
    Case,
    assert_close,
    reference_jvp,
    reference_vjp,
    transformed,
)
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse


def in_parallel(
    interpreter: Interpreter, text: str, arguments: list[np.ndarray]
) -> list[np.ndarray]:
    """Results of `@main` of two members, stacked; so are the arguments."""
    module = parse(text)
    main = module.body.operations[0]
    inputs, results = (
        [str(t) for t in ts] * 2 for ts in (main.type.inputs, main.type.results)
    )
    member = str(main).replace("@main", "@member", 1)
    given = [f"%a{i}" for i in range(len(inputs))]
    pairs = ", ".join(f"{a}: {t}" for a, t in zip(given, inputs, strict=True))
    outputs = ", ".join(f"%0#{i}" for i in range(len(results)))
    program = f"""
    func.func @main({pairs}) -> ({", ".join(results)}) {{
      %0:{len(results)} = "interpreter.run_parallel"({", ".join(given)})
          {{programs = [[@member, @member]]}}
          : ({", ".join(inputs)}) -> ({", ".join(results)})
      return {outputs} : {", ".join(results)}
    }}
    {member}"""
    found = interpreter.run(program, [a[rank] for rank in range(2) for a in arguments])
    half = len(found) // 2
    return [np.stack(pair) for pair in zip(found[:half], found[half:], strict=True)]


def random(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((2, *s)).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Collective, interpreter: Interpreter) -> None:
    (x,) = random(case.shape)
    results, seeds, gradients = reference_vjp(Case(case.name, case.stacked, (x,)))
    ours = in_parallel(interpreter, transformed(case.text, "pcp-vjp"), [x, *seeds])
    for mine, theirs in zip(ours, [*results, *gradients], strict=True):
        assert_close(mine, theirs, 1e-5, case.name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jvp(case: Collective, interpreter: Interpreter) -> None:
    (x,) = random(case.shape)
    results, tangents, pushed = reference_jvp(Case(case.name, case.stacked, (x,)))
    ours = in_parallel(interpreter, transformed(case.text, "pcp-jvp"), [x, *tangents])
    for mine, other in zip(ours, [*results, *pushed], strict=True):
        assert_close(mine, other, 1e-5, case.name)


def test_broadcast(interpreter: Interpreter) -> None:
    """Without the primal op, which nothing at hand runs; its result is unused."""
    x, g = random(BROADCAST.shape, BROADCAST.shape)
    derived = transformed(BROADCAST.text, "pcp-vjp")
    op = re.compile(r'"stablehlo.collective_broadcast"\(%arg0\) <.*> : .*')
    shorter, count = op.subn(f"stablehlo.negate %arg0 : {F}", derived)
    assert count == 1
    _, gradient = in_parallel(interpreter, shorter, [x, g])
    (expected,) = jax.vjp(BROADCAST.stacked, x)[1](g)
    assert_close(gradient, expected, 1e-5, "broadcast")


def channels(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"handle = (\d+)", text)]


@pytest.mark.parametrize("body", ["add", "maximum"])
def test_each_collective_has_a_channel_of_its_own(body: str) -> None:
    text = program("all_reduce", GROUPS, F, F, body)
    first = transformed(text, "pcp-vjp")
    used = channels(first)
    assert len(used) == len(set(used)) == {"add": 2, "maximum": 3}[body]
    again: Any = channels(transformed(first, "pcp-vjp"))
    assert len(again) == len(set(again)) > len(used)
