"""pcp-master-weights: small updates of bf16 and f16 models add up, as torch's do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.models.expanded_training import expanded, model
from helpers.worlds.bundle_runs import ran

import pcp
from pcp.compiler import driver, signature
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.frontends.jax import from_jax
from pcp.passes.training.outer.spec import KINDS
from pcp.runtime.program.executor import Program

torch = pytest.importorskip("torch")

STEPS = 100
SLOPE = 0.5
NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}

#: Each parameter's optimizer: our options, and torch's own.
OPTIMIZERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a": (
        "adamw{lr=1e-3,weight_decay=0}",
        lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0),
    ),
    "s": ("sgd{lr=2e-3,momentum=0}", lambda p: torch.optim.SGD(p, 2e-3)),
    "n": (
        "nesterov{lr=2e-4,momentum=0.9}",
        lambda p: torch.optim.SGD(p, 2e-4, momentum=0.9, nesterov=True),
    ),
    "f": (
        "adafactor{lr=1e-3}",
        lambda p: torch.optim.Adafactor(p, lr=1e-3, weight_decay=0.0),
    ),
    "l": ("lion{lr=1e-3,weight_decay=0}", lambda p: _Lion(p, 1e-3)),
    "m": ("muon{lr=1e-3,weight_decay=0}", lambda p: _Muon(p, 1e-3)),
}


class _Lion(torch.optim.Optimizer):
    """With a constant gradient: its sign in each step."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= group["lr"] * p.grad.sign()


class _Muon(torch.optim.Optimizer):
    """With a gradient of rank 1: five steps of a polynomial on one singular value."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                size = 1.0
                for _ in range(5):
                    size = 3.4445 * size - 4.775 * size**3 + 2.0315 * size**5
                p.data -= group["lr"] * size * p.grad / p.grad.norm()


def linear(dtype: str) -> str:
    """The loss is the sum of all parameters times what is given: constant slopes."""
    arguments = [
        f'%{name}: tensor<2x2x{dtype}> {{pcp.name = "{name}", pcp.role = "param", '
        'pcp.init = "ones"}'
        for name in OPTIMIZERS
    ]
    type_ = f"tensor<2x2x{dtype}>"
    lines, total = [], "%x"
    for name in OPTIMIZERS:
        lines.append(f"%x{name} = stablehlo.multiply %{name}, %x : {type_}")
        lines.append(f"%t{name} = stablehlo.add {total}, %x{name} : {type_}")
        total = f"%t{name}"
    return f"""
func.func @main({", ".join(arguments)},
    %x: {type_} {{pcp.name = "x", pcp.role = "data"}}) -> tensor<{dtype}> {{
  %zero = stablehlo.constant dense<0.0> : tensor<{dtype}>
  {chr(10).join(lines)}
  %loss = stablehlo.reduce({total} init: %zero) applies stablehlo.add
      across dimensions = [0, 1] : ({type_}, tensor<{dtype}>) -> tensor<{dtype}>
  return %loss : tensor<{dtype}>
}}"""


def by_torch(make: Callable[..., Any]) -> np.ndarray:
    """Masters in f32, one parameter of ones, the model's constant gradient."""
    master = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = make([master])
    for _ in range(STEPS):
        optimizer.zero_grad()
        (master.to(torch.bfloat16) * SLOPE).sum().backward()
        optimizer.step()
    return master.detach().numpy()


@pytest.mark.slow  # test_precision.py has steps of masters
@pytest.mark.parametrize("dtype", NARROW)
def test_a_hundred_small_steps(dtype: str, tmp_path: Path) -> None:
    """`pcp.compile`, then `pcp run --steps`. Rounded each step, all would stay 1."""
    first, *others = ((name, text) for name, (text, _) in OPTIMIZERS.items())
    groups = ";".join([first[1], *(f"{name}={text}" for name, text in others)])
    bundle = pcp.compile(parse(linear(dtype)), optimizer=groups, algorithm="none")
    bundle.write(tmp_path / "m.pcp")
    x = np.full((2, 2), SLOPE, np.float32)
    found = ran(tmp_path / "m.pcp", {"x": x}, "--steps", str(STEPS))
    for name, (_, make) in OPTIMIZERS.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], by_torch(make), atol=2e-5, err_msg=name)
        assert (found[name] < 0.995).all(), name
    np.testing.assert_allclose(found["a"], 0.9, atol=0.005)
    # The model itself computes with what the masters are rounded to.
    assert found["losses"].dtype == np.float32
    assert found["losses"][0] == (1 + len(OPTIMIZERS)) * 4 * SLOPE


def loss(w1: Any, b: Any, w2: Any, x: Any) -> Any:
    """Two layers; the first weight is used twice."""
    hidden = jnp.tanh(x @ w1 + b) @ w1
    return jnp.square(hidden @ w2).mean()


@pytest.mark.slow  # a hundred steps are below
def test_gradients_are_those_of_the_rounded_model() -> None:
    """As JAX gives them of masters that are cast where they are used."""
    random = np.random.default_rng(0)
    shapes = [(32, 32), (32,), (32, 8)]
    masters = [random.normal(0, 0.3, s).astype(np.float32) for s in shapes]
    x = random.normal(0, 1, (16, 32)).astype(ml_dtypes.bfloat16)
    narrow = [m.astype(ml_dtypes.bfloat16) for m in masters]
    module = from_jax(loss, *narrow, x, params=(0, 1, 2))
    bundle = pcp.compile(module, optimizer="sgd", algorithm="none")
    with Program.load(bundle, device="local-sync") as program:
        value, *found = program["grad"](*masters, x)
        assert program["eval"](*masters, x) == pytest.approx(value, rel=2**-8)

    def rounded(*masters: Any) -> Any:
        w1, b, w2 = (m.astype(jnp.bfloat16) for m in masters)
        return loss(w1, b, w2, x).astype(jnp.float32)

    wanted = jax.jit(jax.value_and_grad(rounded, (0, 1, 2)))(*masters)
    np.testing.assert_allclose(value, wanted[0], rtol=2**-6)
    for f, w in zip(found, wanted[1], strict=True):
        assert f.dtype == w.dtype == np.float32
        np.testing.assert_allclose(f, w, rtol=0.05, atol=0.02 * float(np.abs(w).max()))


@pytest.mark.parametrize("algorithm", [k for k in KINDS if k != "mezo"])
@pytest.mark.parametrize("dtype", NARROW)
def test_nothing_that_is_trained_crosses_a_border_narrow(
    algorithm: str, dtype: str
) -> None:
    """Anchors, deltas, momenta and gradients of every algorithm."""
    module = expanded(model(dtype), "adamw", algorithm)
    narrow = {
        (name, t.role, t.name)
        for name, function in signature.functions(module, "main", "train").items()
        for t in (*function.inputs, *function.results)
        if t.dtype == dtype and t.role != "data" and name != "jvp"
    }
    assert not narrow
    assert {(p.dtype, p.compute) for p in signature.parameters(module, "main")} == {
        ("f32", dtype)
    }


def test_what_takes_differences_of_losses_refuses() -> None:
    said = r"mezo takes the difference of two losses .*parameter 'w' is rounded to bf16"
    with pytest.raises(PassError, match=said):
        expanded(model("bf16"), "sgd", "mezo")


@pytest.mark.slow  # a hundred steps are above
def test_a_small_outer_step_moves_the_anchors(tmp_path: Path) -> None:
    """θ_m = θ - 1e-4: DiLoCo with γ = 0.7 moves to θ - 7e-5, in bf16 nowhere."""
    text = linear("bf16")
    options = {"optimizer": "sgd", "algorithm": "diloco{lr=0.7,momentum=0}"}
    bundle = pcp.compile(parse(text), **options)
    ones = [np.ones((2, 2), np.float32)] * len(OPTIMIZERS)
    moved = [one - np.float32(1e-4) for one in ones]
    with pcp.Communicator.in_process(1)[0] as alone:
        with Program.load(bundle, device="local-sync", communicator=alone) as program:
            found = program["outer_step"](*ones, *moved, np.float32(8))
    np.testing.assert_allclose(found, np.full_like(found, 1 - 7e-5), atol=1e-7)


def two_products(w1: Any, b: Any, w2: Any, x: Any) -> Any:
    """Something for a pipeline to cut between."""
    return jnp.square(jnp.tanh(x @ w1 + b) @ w2).mean()


#: In which type tensors of rank 1 and more travel.
MOVED = {"all_gather": "bf16", "reduce_scatter": "f32", "all_reduce": "f32"}


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"mesh": "dp=2"}, {"all_reduce"}),
        ({"mesh": "dp=2", "zero": 3}, {"all_gather", "reduce_scatter"}),
        ({"mesh": "pp=2"}, set()),
    ],
)
def test_masters_over_a_mesh(flags: dict[str, Any], wanted: set[str]) -> None:
    """What is gathered or sent to a stage is rounded already; sums are of f32."""
    narrow = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((64, 64), (64,), (64, 8), (1024, 64))
    ]
    module = from_jax(two_products, *narrow, params=(0, 1, 2))
    options = CompileOptions(mode="train", optimizer="adamw", bucket_bytes=0, **flags)
    program = driver.lower(module, options)
    apply = program.manifest.function("apply")
    assert {t.dtype for t in (*apply.inputs, *apply.results)} == {"f32", "i32"}
    assert {p.compute for p in program.manifest.parameters} == {"bf16"}
    text = str(program.module)
    for kind, moved in MOVED.items():
        types = re.findall(rf'"pcp\.{kind}".*-> tensor<(?:\d+x)+(\w+)>', text)
        assert set(types) == ({moved} if kind in wanted else set()), kind
