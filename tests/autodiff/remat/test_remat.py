"""Recomputed gradients are the kept ones; peaks, counts and budgets are as said."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.jax_training import CASES
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.core import functions
from pcp.autodiff.remat.remat import POLICIES
from pcp.autodiff.remat.revolve import extra_steps
from pcp.compiler.attributes import dictionary
from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.analysis.packing import ALIGNMENT

STEPS = 64


def chain(steps: int, w, x):
    """`steps` equal steps; each keeps what its sine was taken of."""
    for _ in range(steps):
        x = jnp.sin(x @ w)
    return x.sum()


def chain_gradient(steps: int = STEPS, size: int = 4, rows: int = 32) -> ir.Module:
    """Its gradient for the input, so that a backward step is one product too."""
    w, x = jnp.zeros((size, size)), jnp.zeros((rows, size))
    text = jax.jit(lambda w, x: chain(steps, w, x)).lower(w, x).as_text()
    module = parse(text)
    return run(module, "pcp-import", "pcp-grad{wrt=1}", "pcp-simplify")


def run(module: ir.Module, *passes: str) -> ir.Module:
    pipeline(f"builtin.module({','.join(passes)})").run(module)
    return module


def report(module: ir.Module) -> dict[str, int]:
    function = functions.find(module, "main_grad")
    return dictionary(function.attributes["pcp.remat"])


def count(module: ir.Module, name: str) -> int:
    block = functions.body(functions.find(module, "main_grad"))
    return sum(op.operation.name == f"stablehlo.{name}" for op in block.operations)


def gradient_text(module: ir.Module) -> str:
    """`@main_grad` alone, as `@main`."""
    for name, function in functions.functions(module).items():
        if name != "main_grad":
            function.erase()
    function = functions.find(module, "main_grad")
    with module.context:
        function.attributes["sym_name"] = ir.StringAttr.get("main")
        if "pcp.remat" in function.attributes:
            del function.attributes["pcp.remat"]
    run(module, "func.func(chlo-legalize-to-stablehlo)")
    return str(module)


# --- chains: Revolve's counts ---


@pytest.mark.parametrize("slots", [1, 2, 3, 6, 8, 11, 64])
def test_chain_recomputes_what_revolve_says(slots: int) -> None:
    module = chain_gradient()
    plain = count(module, "dot_general")
    run(module, f"pcp-remat{{segments={STEPS} slots={slots}}}", "cse", "pcp-simplify")
    extra = count(module, "dot_general") - plain
    assert extra == extra_steps(STEPS, slots)


def test_chain_within_the_bound_of_the_square_root() -> None:
    """8 segments of 8 steps: each step but the last segment's once more, and memory
    for 8 states, one segment's values and a few more instead of 64."""
    module = chain_gradient()
    state = 32 * 4 * 4
    plain = count(module, "dot_general")
    run(module, "pcp-remat{segments=8}", "cse", "pcp-simplify")
    found = report(module)
    assert found["peak_bytes_before"] >= STEPS * state
    assert found["peak_bytes"] <= (2 * 8 + 4) * state
    assert count(module, "dot_general") - plain <= STEPS - 8


@pytest.mark.parametrize("slots", [2, 3, 6])
def test_chain_of_few_slots_keeps_few_states(slots: int) -> None:
    module = run(chain_gradient(), f"pcp-remat{{segments={STEPS} slots={slots}}}")
    loss = ALIGNMENT
    assert report(module)["peak_bytes"] <= (slots + 4) * 32 * 4 * 4 + loss


@pytest.mark.parametrize("slots", [1, 3, 0])
def test_chain_gradients_are_the_same_bits(
    slots: int, interpreter: Interpreter
) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 4)).astype(np.float32)
    x = rng.normal(size=(32, 4)).astype(np.float32)
    kept = gradient_text(chain_gradient(9))
    module = run(chain_gradient(9), f"pcp-remat{{segments=9 slots={slots}}}")
    assert report(module)["recomputed_ops"] > 0
    made_again = gradient_text(module)
    for a, b in zip(
        interpreter.run(kept, [w, x]), interpreter.run(made_again, [w, x]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    wanted = jax.jit(jax.grad(lambda x: chain(9, w, x)))(x)
    np.testing.assert_allclose(
        interpreter.run(made_again, [w, x])[1], wanted, rtol=1e-4, atol=1e-5
    )


# --- models ---


def model_gradient(name: str) -> tuple[ir.Module, list[np.ndarray]]:
    fn, params, data = CASES[name]
    leaves = len(jax.tree.leaves(params))
    wrt = ",".join(map(str, range(leaves)))
    text = jax.jit(fn, keep_unused=True).lower(params, *data).as_text()
    module = run(parse(text), "pcp-import", f"pcp-grad{{wrt={wrt}}}", "pcp-simplify")
    return module, [np.asarray(a) for a in jax.tree.leaves((params, *data))]


OPTIONS = [
    *(f"policy={p} segments=3" for p in POLICIES if p != "everything_saveable"),
    "segments=5 slots=2",
    "segments=4 min-bytes=1024",
]


@pytest.mark.slow  # smaller programs do, too
@pytest.mark.parametrize(
    "name",
    # Slow: a Llama has all that a GPT has, but for its layer norms.
    [pytest.param("gpt", marks=pytest.mark.slow), "llama"],
)
def test_models_keep_their_gradients(name: str, interpreter: Interpreter) -> None:
    module, arguments = model_gradient(name)
    wanted = interpreter.run(gradient_text(module), arguments)
    for options in OPTIONS:
        module = run(model_gradient(name)[0], f"pcp-remat{{{options}}}", "pcp-simplify")
        assert report(module)["recomputed_ops"] > 0, options
        found = interpreter.run(gradient_text(module), arguments)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=options)


def test_policies_keep_what_they_name() -> None:
    plain = count(model_gradient("gpt")[0], "dot_general")

    def dots(options: str) -> int:
        module = run(model_gradient("gpt")[0], f"pcp-remat{{segments=3 {options}}}")
        return count(module, "dot_general") - plain

    assert dots("policy=dots_saveable") == 0
    batched = dots("policy=dots_with_no_batch_dims_saveable")
    assert 0 < batched < dots("policy=nothing_saveable")


def test_everything_saveable_changes_nothing() -> None:
    kept, _ = model_gradient("gpt")
    module = run(model_gradient("gpt")[0], "pcp-remat{policy=everything_saveable}")
    assert gradient_text(module) == gradient_text(kept)


def test_names_are_kept() -> None:
    def again(options: str) -> int:
        module = chain_gradient(6)
        block = functions.body(functions.find(module, "main_grad"))
        with module.context:
            for view in block.operations:
                if view.operation.name == "stablehlo.dot_general":
                    view.operation.attributes["pcp.name"] = ir.StringAttr.get("dot")
        return report(run(module, f"pcp-remat{{segments=3 {options}}}"))[
            "recomputed_ops"
        ]

    assert again("names=dot") < again("names=other") == again("")


# --- budgets ---


def test_budget_is_met_with_less_work_than_nothing_saveable() -> None:
    everything = report(run(chain_gradient(), "pcp-remat"))
    before, least = everything["peak_bytes_before"], everything["peak_bytes"]
    previous = None
    for budget in np.linspace(least, before, 5).astype(int):
        found = report(run(chain_gradient(), f"pcp-remat{{budget={budget}B}}"))
        assert found["peak_bytes"] <= budget
        assert previous is None or found["flops"] <= previous
        previous = found["flops"]
    assert previous == everything["flops_before"]  # the last one fits as it is


def test_budget_below_the_least_peak_says_what_that_is() -> None:
    with pytest.raises(PassError, match=r"least predicted peak is \d+ bytes"):
        run(chain_gradient(8), "pcp-remat{budget=64B}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("budget=12", "not a number of bytes such as 512MiB"),
        ("policy=dots_savable", "dots_saveable"),
        ("segments=1", "cuts nothing"),
        ("forward-results=0", "no op ends the forward half"),
        ("func=nowhere", "no function @nowhere"),
    ],
)
def test_refusals(options: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        run(chain_gradient(4), f"pcp-remat{{{options}}}")


# --- the report ---


def test_report_says_what_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "remat.json"
    module = run(chain_gradient(6), f"pcp-remat{{segments=3 report={path}}}")
    written, kept = json.loads(path.read_text()), report(module)
    assert all(written[k] == kept[k] for k in kept if k != "recomputed_ops")
    assert written["peak_ratio"] == round(
        kept["peak_bytes"] / kept["peak_bytes_before"], 4
    )
    times = sum(op["times"] for op in written["recomputed"])
    assert times == kept["recomputed_ops"] > 0
    assert {op["op"] for op in written["recomputed"]} <= {
        "stablehlo.sine",
        "stablehlo.dot_general",
    }


def test_report_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="cannot be written"):
        run(chain_gradient(4), f"pcp-remat{{report={tmp_path}/none/r.json}}")
