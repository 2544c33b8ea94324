"""Training ops written by hand, against torch.optim and closed forms."""

from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import bundle, in_parallel, run_passes
from helpers.oracles.jax_gradients import array
from helpers.servers.interpreter import Interpreter

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.runtime.program.executor import Program

torch = pytest.importorskip("torch")

EXPAND = "pcp-expand-training{func=}"
STEPS = 4
W, B = array(3, 5), array(5, seed=1)
KINDS: dict[str, tuple[str, int, Any]] = {
    "adamw": (
        "{lr = 0.02, beta1 = 0.8, eps = 1.0e-6, weight_decay = 0.1}",
        2,
        lambda p: torch.optim.AdamW(
            p, lr=0.02, betas=(0.8, 0.999), eps=1e-6, weight_decay=0.1
        ),
    ),
    "nesterov": (
        "{lr = 0.05, momentum = 0.8}",
        1,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True),
    ),
    "sgd": ("{lr = 0.1}", 0, lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd with momentum": (
        "{lr = 0.05, momentum = 0.9, clip_norm = 0}",
        1,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
}


def optimizer(kind: str, hyper: str, slots: int) -> str:
    """Two parameters of different shapes, updated by one op."""
    pair, step = ["tensor<3x5xf32>", "tensor<5xf32>"], "tensor<i32>"
    given, gives = [*pair * (2 + slots), step], [*pair * (1 + slots), step]
    names = [f"%a{i}" for i in range(len(given))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, given, strict=True))
    taken, made = f"tuple<{', '.join(given)}>", f"tuple<{', '.join(gives)}>"
    results = ", ".join(f"%r#{i}" for i in range(len(gives)))
    cast = "builtin.unrealized_conversion_cast"
    return f"""
func.func @main({arguments}) -> ({", ".join(gives)}) {{
  %t = {cast} {", ".join(names)} : {", ".join(given)} to {taken}
  %u = "pcp.optimizer"(%t) {{count = 2, hyper = {hyper}, kind = "{kind}"}}
      : ({taken}) -> {made}
  %r:{len(gives)} = {cast} %u : {made} to {", ".join(gives)}
  return {results} : {", ".join(gives)}
}}"""


@pytest.mark.parametrize("name", KINDS)
def test_optimizer_is_that_of_torch(name: str, interpreter: Interpreter) -> None:
    hyper, slots, make = KINDS[name]
    text = optimizer(name.split()[0], hyper, slots)
    module = str(run_passes(text, EXPAND))
    params = [torch.nn.Parameter(torch.tensor(x)) for x in (W, B)]
    theirs = make(params)
    ours = [W, B]
    state = [np.zeros_like(x) for _ in range(slots) for x in (W, B)]
    step = np.zeros((), np.int32)
    for seed in range(STEPS):
        grads = [array(3, 5, seed=10 + seed), array(5, seed=20 + seed)]
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.tensor(g)
        theirs.step()
        *made, step = interpreter.run(module, [*ours, *grads, *state, step])
        ours, state = made[:2], made[2:]
        for found, wanted in zip(ours, params, strict=True):
            wanted = wanted.detach().numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert step == STEPS


def outer(kind: str, hyper: str) -> str:
    return f"""
"pcp.mesh"() {{axes = [#pcp.axis<"islands", -1>], devices = [], sym_name = "m"}}
    : () -> ()
func.func @main(%anchor: tensor<5xf32>, %own: tensor<5xf32>, %m: tensor<5xf32>)
    -> (tensor<5xf32>, tensor<5xf32>) {{
  %0:2 = "pcp.outer"(%anchor, %own, %m) {{axes = ["islands"], count = 1, every = 3,
      hyper = {hyper}, kind = "{kind}", mesh = @m}}
      : (tensor<5xf32>, tensor<5xf32>, tensor<5xf32>)
      -> (tensor<5xf32>, tensor<5xf32>)
  return %0#0, %0#1 : tensor<5xf32>, tensor<5xf32>
}}"""


@pytest.mark.parametrize("workers", [1, 3])
def test_outer_nesterov_is_that_of_torch(workers: int) -> None:
    moves = [[array(5, seed=7 * r + w) for w in range(workers)] for r in range(3)]
    anchor, wanted = B, []
    p = torch.nn.Parameter(torch.tensor(B))
    theirs = torch.optim.SGD([p], lr=0.6, momentum=0.8, nesterov=True)
    for step in moves:
        p.grad = torch.tensor(np.mean(step, axis=0))
        theirs.step()
        wanted.append(p.detach().numpy().copy())

    def work(loaded: Any, rank: int) -> list[np.ndarray]:
        start, momentum, found = anchor, np.zeros_like(B), []
        for step in moves:
            start, momentum = loaded["main"](start, start - step[rank], momentum)
            found.append(np.asarray(start))
        return found

    text = outer("nesterov", "{lr = 0.6, momentum = 0.8}")
    code = bundle(run_passes(text, f"{EXPAND},pcp-lower-to-runtime"))
    for found in in_parallel(code, workers, work):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_outer_average_is_the_mean_and_keeps_the_momenta() -> None:
    own, momentum = [array(5, seed=s) for s in range(3)], array(5, seed=9)

    def work(loaded: Any, rank: int) -> Any:
        return loaded["main"](B, own[rank], momentum)

    text = outer("average", "{}")
    code = bundle(run_passes(text, f"{EXPAND},pcp-lower-to-runtime"))
    for found, kept in in_parallel(code, 3, work):
        np.testing.assert_allclose(found, np.mean(own, axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(kept, momentum)


def test_a_model_of_training_ops_compiles_and_runs() -> None:
    text = optimizer("sgd", "{lr = 0.1}", 0)
    code = driver.compile(parse(text), CompileOptions(mode="forward"))
    grads = [array(3, 5, seed=3), array(5, seed=4)]
    with Program.load(code) as loaded:
        *made, step = loaded["main"](W, B, *grads, np.zeros((), np.int32))
    assert step == 1
    for found, start, grad in zip(made, (W, B), grads, strict=True):
        np.testing.assert_allclose(found, start - 0.1 * grad, rtol=1e-6, atol=1e-7)
