"""What `rounding` takes for exact, by the code that IREE makes for two processors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers.processor_features import fused

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of, walk
from pcp.passes.sharding.rounding import decisions, rounds
from pcp.runtime.program.executor import Program

#: Exact by what the pass says: what moves, selects and compares, on arguments as they
#: came. Behind each a name; all are functions of x and y.
EXACT = {
    "abs": lambda x, y: jnp.abs(x),
    "ceil": lambda x, y: jnp.ceil(x),
    "clamp": lambda x, y: jax.lax.clamp(-0.5, x, 0.5),
    "compare": lambda x, y: x < y,
    "concatenate": lambda x, y: jnp.concatenate([x, y]),
    "floor": lambda x, y: jnp.floor(x),
    "maximum": lambda x, y: jnp.maximum(x, y),
    "minimum": lambda x, y: jnp.minimum(x, y),
    "negate": lambda x, y: -x,
    "pad": lambda x, y: jnp.pad(x, ((1, 2), (0, 3))),
    "reduce": lambda x, y: x.max(axis=1),
    "reverse": lambda x, y: x[::-1],
    "round_nearest_even": lambda x, y: jnp.round(x),
    "select": lambda x, y: jnp.where(y > 0, x, y),
    "sign": lambda x, y: jnp.sign(x),
    "slice": lambda x, y: x[2:, ::2],
    "sort": lambda x, y: jnp.sort(x, axis=1),
    "transpose": lambda x, y: x.T,
}
INEXACT = {
    "add": lambda x, y: x * y + x,
    "exponential": lambda x, y: jnp.exp(x),
    "dot_general": lambda x, y: x @ y.T,
    "reduce": lambda x, y: (x * y).sum(axis=1),
    "divide": lambda x, y: (x * x + y) / (1 + y * y),
}
SHAPE = (17, 33)
MADE_OF_NOTHING = ("stablehlo.constant", "stablehlo.iota", "func.call")


def _text(made: dict) -> str:
    """A module with all of them, as results of one function."""
    x = jnp.zeros(SHAPE, jnp.float32)

    def main(x, y):
        return tuple(make(x, y) for make in made.values())

    return jax.jit(main).lower(x, x).as_text()


def _found(made: dict, target: str) -> list[np.ndarray]:
    options = CompileOptions(mode="forward", targets=(target,))
    bundle = driver.compile(parse(_text(made)), options)
    random = np.random.default_rng(0)
    x, y = (random.normal(size=SHAPE).astype(np.float32) for _ in range(2))
    with Program.load(bundle, device="local-sync") as program:
        return [np.array(value) for value in program["main"](x, y)]


@pytest.mark.slow  # test_verify_owners.py keeps bits
def test_what_is_exact_comes_out_alike_on_two_processors() -> None:
    text = _text(EXACT)
    for name in EXACT:
        assert f"stablehlo.{name}" in text, name
    made = EXACT | {f"inexact {name}": make for name, make in INEXACT.items()}
    both = [_found(made, target) for target in ("cpu", "cpu:host")]
    differs = {
        name
        for name, one, other in zip(made, *both, strict=True)
        if one.tobytes() != other.tobytes()
    }
    assert not differs & set(EXACT)
    if fused():  # else two targets that round alike show nothing
        assert differs >= {"inexact divide", "inexact dot_general"}


def _rounding(made: dict) -> list[str]:
    module = parse(_text(made))
    with module.context:
        ops = [op for f in functions(module) for op in walk(block_of(f, 0))]
        return [op.name for op in ops if rounds(op)]


def test_what_rounds_is_said() -> None:
    assert set(_rounding(EXACT)) <= {"func.call"}
    for name, make in INEXACT.items():
        assert f"stablehlo.{name}" in _rounding({name: make}), name


@pytest.mark.parametrize(
    ("make", "decided"),
    [
        (lambda x, y: jnp.argmax(x, axis=1), ["stablehlo.reduce"]),
        (lambda x, y: x < y, ["stablehlo.compare"]),
        (lambda x, y: jnp.floor(x), ["stablehlo.floor"]),
        (lambda x, y: jnp.sort(x), []),
        (lambda x, y: jax.lax.sort((x, y), num_keys=1)[1], 2 * ["stablehlo.sort"]),
        (lambda x, y: jnp.maximum(x, y) @ y.T, []),
    ],
)
def test_what_decides_is_said(make, decided: list[str]) -> None:
    module = parse(_text({"it": make}))
    with module.context:
        ops = [op for f in functions(module) for op in walk(block_of(f, 0))]
        found = [
            op.name
            for op in ops
            for _ in decisions(op)
            if op.name not in MADE_OF_NOTHING
        ]
    assert found == decided
