"""docs/accuracy.md holds: every elementary function, sampled; all of f32 and f16, slow.

Special values, both signs of them, are among the samples, and an error there is a wrong
NaN, infinity, or sign of a zero.
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.accuracy.errors import counted, errors, suspects
from helpers.accuracy.exact import BINARY, EVEN, ODD
from helpers.accuracy.points import TYPES, operands, specials
from helpers.accuracy.programs import function_name, lowered, text
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.passes.legalize.functions.accuracy import CLAIMS, Claim, claims_of

ROOT = Path(__file__).parents[3]
OPS = tuple(dict.fromkeys(claim.op for claim in CLAIMS))
#: No vector has a length that divides it.
CPUS = ("cpu", "cpu:host")
COUNT = {"f32": 4099, "f16": 2053, "bf16": 2053, "f64": 509}


#: Narrow types are computed in f32, whose functions are here; they, f64 and the other
#: processor are slow, since a program of all functions compiles for nine seconds.
PLACES = [("cpu", "f32")]
RARE = [(cpu, e) for cpu in CPUS for e in COUNT if (cpu, e) not in PLACES]
EVERYWHERE = [*PLACES, *(pytest.param(*p, marks=pytest.mark.slow) for p in RARE)]


def results(
    iree: Iree, target: str, element: str, given: dict[str, list[np.ndarray]]
) -> dict[str, np.ndarray]:
    """What ops of the one program of all ops give."""
    program = lowered(text(OPS, element, COUNT[element]), target)
    calls = {function_name(op): arrays for op, arrays in given.items()}
    answers = iree.on(target).run_all(program, calls)
    found = {}
    for op, answer in zip(given, answers, strict=True):
        assert not isinstance(answer, str), (op, answer)
        found[op] = np.asarray(answer[0]).view(TYPES[element])
    return found


@pytest.mark.parametrize(("target", "element"), EVERYWHERE)
def test_the_largest_error_is_below_its_bound(
    iree: Iree, target: str, element: str
) -> None:
    given = {op: _operands(op, element) for op in OPS}
    found = results(iree, target, element, given)
    for op, arrays in given.items():
        for row in claims_of(op):
            check(row, arrays, found[op])


def _operands(op: str, element: str) -> list[np.ndarray]:
    return operands(TYPES[element], 2 if op in BINARY else 1, COUNT[element])


def check(row: Claim, given: list[np.ndarray], got: np.ndarray) -> None:
    """No result is further off than a row of the table allows."""
    dtype = given[0].dtype
    bound = row.ulp[next(name for name, kind in TYPES.items() if kind == dtype)]
    off = counted(row, given, got)
    beyond = np.flatnonzero(~(off <= bound))
    where = [(*(float(x[i]) for x in given), float(off[i])) for i in beyond[:5]]
    assert not beyond.size, (row, where)


def test_a_wrong_answer_is_beyond_its_bound() -> None:
    """A guard that lets 40 ulp, a lost sign or a lost NaN pass is none."""
    x = np.array([0.5, -0.0, np.nan, 2.0, 1e-39], np.float32)
    got = np.tanh(x)
    assert errors("tanh", [x], got).max() < 2
    got[4] = 0  # a subnormal number may be taken for zero
    assert errors("tanh", [x], got).max() < 2
    wrong = np.array([0.4621183, 0.0, 0.0, np.inf, 0.0], np.float32)
    off = errors("tanh", [x], wrong)
    assert 30 < off[0] < 40
    assert np.isinf(off[1:4]).all()
    assert suspects("tanh", [x[:1]], wrong[:1], 5).tolist() == [0]
    for row in claims_of("tanh"):
        with pytest.raises(AssertionError):
            check(row, [x], wrong)


@pytest.mark.parametrize(("target", "element"), EVERYWHERE)
def test_odd_and_even_to_the_bit(iree: Iree, target: str, element: str) -> None:
    x, word = _operands("sine", element)[0], f"u{TYPES[element].itemsize}"
    ops = sorted(ODD | EVEN)
    ahead, behind = (
        results(iree, target, element, {op: [v] for op in ops}) for v in (x, -x)
    )
    for op in ops:
        mirrored = -ahead[op] if op in ODD else ahead[op]
        same = behind[op].view(word) == mirrored.view(word)
        same |= ahead[op] != ahead[op]  # NaN
        assert same.all(), (op, x[~same][:3])


JAX = {
    "atan2": lax.atan2,
    "cbrt": lax.cbrt,
    "chlo.acos": lax.acos,
    "chlo.asin": lax.asin,
    "chlo.cosh": lax.cosh,
    "chlo.erf": lax.erf,
    "chlo.sinh": lax.sinh,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "logistic": lax.logistic,
    "power": lax.pow,
    "remainder": lax.rem,
    "rsqrt": lax.rsqrt,
    "tanh": lax.tanh,
}


@pytest.mark.slow  # those of sines and powers have tests of their own
def test_special_values_are_those_of_jax(iree: Iree) -> None:
    """NaN, infinities and zeros, signs included, where XLA's are of the same kind."""
    edge = specials(TYPES["f32"])
    edge = edge[~((edge != 0) & (abs(edge) < 2.0**-120))]
    x, y = (m.reshape(-1) for m in np.meshgrid(edge, edge))
    given = [x.copy(), y.copy()]
    functions = {op: f for op, f in JAX.items()}

    def every(x, y):
        return [f(x, y) if op in BINARY else f(x) for op, f in functions.items()]

    jitted = jax.jit(every)
    found = iree.run(legalized(jitted.lower(*given).as_text()), given)
    for op, got, want in zip(functions, found, jitted(*given), strict=True):
        want = np.asarray(want)
        kinds = [_kind(v) for v in (got, want)]
        small = np.minimum(abs(got), abs(want)) < 2.0**-120  # subnormal numbers
        large = np.maximum(abs(got), abs(want)) > 3.4e38
        unlike = (kinds[0] != kinds[1]) & ~(small & (got != 0)) & ~(large & (got != 0))
        unlike &= np.isnan(got) | np.isnan(want) | (kinds[0] > 0) | (kinds[1] > 0)
        where = [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(unlike)[:5]]
        assert not where, (op, where)


def _kind(x: np.ndarray) -> np.ndarray:
    """0 of a number, 1 NaN, 2 and 3 infinities, 4 and 5 zeros."""
    kind = np.zeros(x.shape, int)
    kind[np.isnan(x)] = 1
    kind[np.isinf(x)] = 2 + np.signbit(x[np.isinf(x)])
    kind[x == 0] = 4 + np.signbit(x[x == 0])
    return kind


@pytest.mark.slow  # seconds of IREE for one sum
def test_a_gradient_of_doubles_has_digits(iree: Iree) -> None:
    """Of log(1 + x) and eˣ - 1 at a small x, and sines far out: derivatives, too."""
    from pcp.autodiff.passes.derivatives import Grad
    from pcp.dialect.context import parse
    from pcp.passes.ingest.import_ import Import

    def loss(x):
        terms = jnp.log1p(x * 1e-9) * 1e9, jnp.expm1(x * 1e-9) * 1e9, jnp.sin(x * 1e6)
        return sum(jnp.sum(term) for term in terms)

    x = np.random.default_rng(1).uniform(-1, 1, 64)
    with jax.enable_x64(True):
        module = parse(jax.jit(loss).lower(x).as_text())
    Import().run(module)
    Grad(name_="slope").run(module)
    (found,) = iree.run_all(lowered(str(module), "cpu:host"), {"slope": [x]})
    assert not isinstance(found, str), found
    tiny = x * 1e-9
    want = 1 / (1 + tiny) + np.exp(tiny) + 1e6 * np.cos(x * 1e6)
    np.testing.assert_allclose(found[-1], want, rtol=0, atol=1e-8)


CHUNK = {"f32": 1 << 22, "f16": 1 << 16, "bf16": 1 << 16}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("element", CHUNK)
@pytest.mark.parametrize("op", [op for op in OPS if op not in BINARY])
def test_every_number(each_cpu: Iree, op: str, element: str) -> None:
    """All 2³² or 2¹⁶ patterns, as `benchmarks/accuracy.py --exhaustive` has them."""
    count, dtype = CHUNK[element], TYPES[element]
    program = lowered(text([op], element, count), each_cpu._target)
    rows = claims_of(op)
    least = min(row.ulp[element] for row in rows)
    for start in range(0, 1 << 8 * dtype.itemsize, count):
        bits = np.arange(start, start + count, dtype=np.uint64)
        given = [bits.astype(f"u{dtype.itemsize}").view(dtype)]
        (answer,) = each_cpu.run_all(program, {function_name(op): given})
        assert not isinstance(answer, str), answer
        got = np.asarray(answer[0]).view(dtype)
        place = suspects(op, given, got, least)
        for row in rows:
            check(row, [x[place] for x in given], got[place])


@pytest.mark.slow  # the numbers are those of the tests above
def test_the_command_that_measures() -> None:
    """docs/accuracy.md is made of what it finds."""
    command = [sys.executable, ROOT / "benchmarks" / "accuracy.py", "--only", "abs"]
    command += ["--types", "f32", "--targets", "cpu", "--samples", "503"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(said.partition("} ")[0] + "}")["worst"][""][0] == 0
