"""pcp-expand-training as a whole: borders, types, order, determinism."""

from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import (
    expanded,
    model,
    program,
    run_passes,
    tensors,
)

from pcp.compiler import signature
from pcp.errors import PassError
from pcp.passes.training.expand_training import ExpandTraining
from pcp.passes.training.outer.spec import KINDS, Average, DiLoCo, parse


def borders(module: Any) -> dict[str, Any]:
    return signature.functions(module, "main", "train")


def names(ports: Any) -> list[tuple[str, str]]:
    return [(port.role, port.name) for port in ports]


PARAMS = [("param", n) for n in ("w", "b", "s")]
GRADS = [("grad", n) for n in ("w", "b", "s")]
MOMENTA = [("outer", f"momentum.{n}") for n in ("w", "b", "s")]
ADAM = [("state", f"{k}.{n}") for k in ("m", "v") for n in ("w", "b", "s")]
STEP = [("state", "step")]
LOSS = [("loss", "loss")]


def test_borders_of_diloco_with_adamw() -> None:
    found = borders(expanded(model(), "adamw", "diloco"))
    assert {name: (names(f.inputs), names(f.results)) for name, f in found.items()} == {
        "main": ([*PARAMS, ("data", "x")], LOSS),
        "grad": ([*PARAMS, ("data", "x")], [*LOSS, *GRADS]),
        "init": ([("seed", "seed")], [*PARAMS, *ADAM, *STEP]),
        "apply": ([*PARAMS, *GRADS, *ADAM, *STEP], [*PARAMS, *ADAM, *STEP]),
        "eval": ([*PARAMS, ("data", "x")], LOSS),
        "outer_init": (PARAMS, MOMENTA),
        "outer_step": (
            [
                *[("anchor", n) for n in ("w", "b", "s")],
                *PARAMS,
                *MOMENTA,
                ("tokens", "tokens"),
            ],
            [*PARAMS, *MOMENTA],
        ),
    }


FRAGMENTS = {
    f"outer_{part}_{p}" for part in ("send", "exchange", "apply") for p in range(3)
}


@pytest.mark.parametrize("algorithm", KINDS)
def test_functions_of_each_algorithm(algorithm: str) -> None:
    found = set(borders(expanded(model(), "sgd", algorithm)))
    more = {
        "diloco": {"outer_init", "outer_step"},
        "average": {"outer_init", "outer_step"},
        "streaming_diloco": {"outer_init", *FRAGMENTS},
        "async_diloco": {"outer_init", "outer_step", "outer_early"},
        "async_local_sgd": {"outer_init", "outer_step"},
        "eager": {"outer_init", "outer_step", "outer_early"},
        "noloco": {"outer_init", "outer_step"},
        "decoupled": {"outer_init", "outer_step"},
        "muloco": {"outer_init", "outer_step"},
        "sparseloco": {"outer_init", "outer_step"},
        "snoo": {"outer_init", "outer_step"},
        "ddp": {"grad_sync"},
        "demo": {"outer_init", "grad_sync"},
        "mezo": {"outer_init", "grad_sync"},
        "forward_gradient": {"outer_init", "grad_sync", "jvp"},
        "none": set(),
    }
    assert found == {"main", "grad", "init", "apply", "eval"} | more[algorithm]


def test_data_may_stand_anywhere() -> None:
    """Roles, not places, say what is a parameter."""
    text = """
    func.func @main(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"},
                    %w: tensor<4xf32> {pcp.name = "w", pcp.role = "param"})
        -> tensor<f32> {
      %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0]
          : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    found = borders(expanded(text))
    assert names(found["grad"].inputs) == [("data", "x"), ("param", "w")]
    assert names(found["grad"].results) == [("loss", "loss"), ("grad", "w")]
    assert names(found["apply"].inputs) == [("param", "w"), ("grad", "w"), *STEP]


def test_same_module_and_options_same_bytes() -> None:
    first, second = (str(expanded(model(), "adamw", "diloco")) for _ in range(2))
    assert first == second


@pytest.mark.slow  # a program more
def test_eval_is_main_and_grad_descends() -> None:
    """One program trained for a while: @eval says what @grad said, and it falls."""
    module = expanded(model(), "sgd{lr=0.05}", keep=["main", "grad", "apply", "eval"])
    generator = np.random.default_rng(0)
    params, state = tensors(generator, scale=0.5), (np.int32(0),)
    x = generator.standard_normal((3, 5)).astype(np.float32)
    with program(module) as loaded:
        losses = []
        for _ in range(10):
            loss, *gradients = loaded["grad"](*params, x)
            assert loss == loaded["eval"](*params, x) == loaded["main"](*params, x)
            *params, step = loaded["apply"](*params, *gradients, *state)
            state = (step,)
            losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 1


REFUSED = {
    "optimizer=adam": "pcp-expand-training: no optimizer 'adam'",
    "optimizer=adamw{lrr=1}": "unknown key 'lrr'",
    "algorithm=dilocoo": "no algorithm 'dilocoo' .*Did you mean 'diloco'",
    "algorithm=diloco{lr=0}": "lr=0.0: must be positive",
    "func=nothing": "no function @nothing to train",
    "grad=backward": "no function @backward; run pcp-grad",
}


@pytest.mark.parametrize("options", REFUSED)
def test_refused(options: str) -> None:
    grad = "pcp-infer-roles,pcp-grad{func=main name=grad}"
    with pytest.raises(PassError, match=REFUSED[options]):
        run_passes(model(), f"{grad},pcp-expand-training{{{options}}}")


def test_names_that_are_taken() -> None:
    taken = model() + "func.func private @apply()"
    with pytest.raises(PassError, match="has a symbol @apply already"):
        expanded(taken)


def test_options_as_text() -> None:
    assert str(ExpandTraining(optimizer="adamw{lr=0.1}", algorithm="ddp")) == (
        "pcp-expand-training{optimizer=adamw{lr=0.1} algorithm=ddp}"
    )


def test_algorithms_as_text() -> None:
    assert parse("diloco") == DiLoCo(0.7, 0.9, True)
    assert parse(str(DiLoCo(lr=0.5, nesterov=False))) == DiLoCo(0.5, nesterov=False)
    assert parse("average") == Average()
    assert str(DiLoCo(nesterov=False)) == "diloco{nesterov=false}"
