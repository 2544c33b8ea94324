"""Training bundles in pipeline stages, step by step in the lockstep executor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from helpers.models import sharded
from helpers.oracles import pipelines
from helpers.oracles.spmd import whole

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.functions import NAME, ROLE, result_attributes, string, symbol_name
from pcp.passes.pipeline.whole import HINTS
from pcp.runtime.program.drawn_function import DrawnFunction

Tensors = dict[tuple[str, str], np.ndarray]

NO_PROGRAM: Any = {}
"""Of first values that follow from a seed alone."""

#: A function's results, from tensors by role and name.
Runner = Callable[[str, Tensors], Tensors]


def compiled(model: str, **options: Any):
    """The model's training program for each device."""
    chosen = CompileOptions(mode="train", **options)
    module = parse(sharded.training_text(model))
    program = driver.lower(module, chosen)
    return program


def both(program: Any, model: str, steps: int) -> list[dict[str, Tensors]]:
    """What steps leave by each function: on the devices, and of the whole program."""
    found = sharded.models()[model]
    data: Tensors = {
        ("data", name): value
        for name, value in zip(found.names, found.arguments, strict=True)
        if name.startswith("data.")
    }
    runners = (
        partial(pipelines.run_mixed, program.module),
        partial(whole_program, program),
    )
    return [train(run, first(program, 7), data, steps) for run in runners]


def differences(model: str, steps: int, **options: Any) -> dict[str, float]:
    """By function, the largest relative error of what `steps` steps leave."""
    program = compiled(model, **options)
    worst, ran = {}, both(program, model, steps)
    for name in ran[0]:
        one, other = ran[0][name], ran[1][name]
        assert set(one) == set(other), set(one) ^ set(other)
        worst[name] = max(_error(one[key], other[key]) for key in one)
    return worst


def first(program: Any, seed: int) -> Tensors:
    """The first values of a seed, whole."""
    init = program.manifest.function("init")
    values = DrawnFunction(NO_PROGRAM, "init", init)(seed)
    return {t.key: v for t, v in zip(init.results, values, strict=True)}


def train(run: Runner, kept: Tensors, data: Tensors, steps: int) -> dict[str, Tensors]:
    left = {}
    for _ in range(steps):
        left["grad"] = run("grad", kept | data)
        kept = kept | run("apply", kept | left["grad"])
    left["apply"] = kept
    left["eval"] = run("eval", kept | data)
    return left


def whole_program(program: Any, name: str, tensors: Tensors) -> Tensors:
    """The function of the program before it was spread, in the interpreter."""
    alone = parse(str(program.whole))
    with alone.context:
        for view in list(alone.body.operations):
            if view.operation.name != "func.func" or symbol_name(view) != name:
                view.operation.erase()
            else:
                _without_hints(view.operation)
    function = program.manifest.function(name)
    inputs = [tensors[t.role, t.name] for t in function.inputs]
    results = whole(str(alone).replace(f"@{name}(", "@main("), inputs)
    keys = [(t.role, t.name) for t in function.results]
    return dict(zip(keys, results, strict=True))


def _without_hints(function: ir.Operation) -> None:
    """Take out what only says how tensors are to lie."""
    for view in list(function.regions[0].blocks[0].operations):
        if view.operation.name in HINTS:
            view.operation.results[0].replace_all_uses_with(view.operation.operands[0])
            view.operation.erase()


def _error(a: np.ndarray, b: np.ndarray) -> float:
    if not a.size:
        return 0.0
    return float(np.abs(a - b).max() / (1e-3 + np.abs(b).max()))


def holders(program: Any, function: str, role: str) -> dict[str, list[str]]:
    """By tensor, the devices whose function has it among its results."""
    found: dict[str, list[str]] = {}
    with program.module.context:
        for view in program.module.body.operations:
            if view.operation.name != "builtin.module":
                continue
            body = view.operation.regions[0].blocks[0].operations
            own = next(f.operation for f in body if symbol_name(f) == function)
            for said in result_attributes(own):
                if string(said, ROLE) == role:
                    held = found.setdefault(string(said, NAME) or "", [])
                    held.append(symbol_name(view))
    return found
