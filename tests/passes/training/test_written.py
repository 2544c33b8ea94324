"""Training ops written by hand, against torch.optim and closed forms."""

from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import bundle, in_parallel, run_passes
from helpers.oracles.jax_gradients import array
from helpers.sampled import sampled
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
    return on_a_pair("pcp.optimizer", kind, hyper, (2 + slots, 1 + slots), "i32", True)


def outer(kind: str, hyper: str, slots: int) -> str:
    """Two parameters of different shapes, moved by one op over @m."""
    over = ', axes = ["islands"], mesh = @m'
    return f"""
"pcp.mesh"() {{axes = [#pcp.axis<"islands", -1>], devices = [], sym_name = "m"}}
    : () -> ()
{on_a_pair("pcp.outer", kind, hyper, (2 + slots, 1 + slots), "f32", False, over)}"""


def on_a_pair(
    op: str,
    kind: str,
    hyper: str,
    times: tuple[int, int],
    last: str,
    gives_last: bool,
    more: str = "",
) -> str:
    """An op that takes and gives so many pairs; it takes a scalar behind them."""
    pair, scalar = ["tensor<3x5xf32>", "tensor<5xf32>"], f"tensor<{last}>"
    given, gives = [*pair * times[0], scalar], pair * times[1] + [scalar] * gives_last
    names = [f"%a{i}" for i in range(len(given))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, given, strict=True))
    taken, made = f"tuple<{', '.join(given)}>", f"tuple<{', '.join(gives)}>"
    results = ", ".join(f"%r#{i}" for i in range(len(gives)))
    cast = "builtin.unrealized_conversion_cast"
    return f"""
func.func @main({arguments}) -> ({", ".join(gives)}) {{
  %t = {cast} {", ".join(names)} : {", ".join(given)} to {taken}
  %u = "{op}"(%t) {{count = 2, hyper = {hyper}, kind = "{kind}"{more}}}
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


OUTER_KINDS: dict[str, tuple[str, int, Any]] = {
    "with look-ahead": (
        "{lr = 0.6, momentum = 0.8}",
        1,
        lambda p: torch.optim.SGD(p, lr=0.6, momentum=0.8, nesterov=True),
    ),
    "heavy ball": (
        "{lr = 0.6, momentum = 0.8, nesterov = false}",
        1,
        lambda p: torch.optim.SGD(p, lr=0.6, momentum=0.8),
    ),
    "without momentum": (
        "{lr = 0.6, momentum = 0}",
        0,
        lambda p: torch.optim.SGD(p, lr=0.6),
    ),
}
TOKENS = (1, 3, 4)


def shares(workers: int) -> np.ndarray:
    return np.array(TOKENS[:workers], np.float32) / sum(TOKENS[:workers])


@sampled("name, workers", [("with look-ahead", 1), *((n, 3) for n in OUTER_KINDS)], 2)
def test_outer_diloco_is_torchs_step_by_the_mean_move(name: str, workers: int) -> None:
    hyper, slots, make = OUTER_KINDS[name]
    moves = [
        [
            (array(3, 5, seed=9 * r + w), array(5, seed=7 * r + w))
            for w in range(workers)
        ]
        for r in range(3)
    ]
    params = [torch.nn.Parameter(torch.tensor(x)) for x in (W, B)]
    theirs, wanted = make(params), []
    for step in moves:
        for p, of_workers in zip(params, zip(*step, strict=True), strict=True):
            p.grad = torch.tensor(np.tensordot(shares(workers), of_workers, 1))
        theirs.step()
        wanted.append([p.detach().numpy().copy() for p in params])

    def work(loaded: Any, rank: int) -> list[list[np.ndarray]]:
        start, found = [W, B], []
        momenta = [np.zeros_like(x) for x in start] * slots
        tokens = np.float32(TOKENS[rank])
        for step in moves:
            own = [x - move for x, move in zip(start, step[rank], strict=True)]
            made = [
                np.asarray(x) for x in loaded["main"](*start, *own, *momenta, tokens)
            ]
            start, momenta = made[:2], made[2:]
            found.append(start)
        return found

    text = outer("diloco", hyper, slots)
    code = bundle(run_passes(text, f"{EXPAND},pcp-lower-to-runtime"))
    for found in in_parallel(code, workers, work):
        for step, expected in zip(found, wanted, strict=True):
            for x, y in zip(step, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_outer_average_is_the_mean_by_tokens() -> None:
    own = [(array(3, 5, seed=s), array(5, seed=s)) for s in range(3)]

    def work(loaded: Any, rank: int) -> Any:
        return loaded["main"](W, B, *own[rank], np.float32(TOKENS[rank]))

    text = outer("average", "{}", 0)
    code = bundle(run_passes(text, f"{EXPAND},pcp-lower-to-runtime"))
    for found in in_parallel(code, 3, work):
        for x, of_workers in zip(found, zip(*own, strict=True), strict=True):
            mean = np.tensordot(shares(3), of_workers, 1)
            np.testing.assert_allclose(x, mean, rtol=1e-5, atol=1e-6)


def test_a_model_of_training_ops_compiles_and_runs() -> None:
    text = optimizer("sgd", "{lr = 0.1}", 0)
    code = driver.compile(parse(text), CompileOptions(mode="forward"))
    grads = [array(3, 5, seed=3), array(5, seed=4)]
    with Program.load(code) as loaded:
        *made, step = loaded["main"](W, B, *grads, np.zeros((), np.int32))
    assert step == 1
    for found, start, grad in zip(made, (W, B), grads, strict=True):
        np.testing.assert_allclose(found, start - 0.1 * grad, rtol=1e-6, atol=1e-7)
