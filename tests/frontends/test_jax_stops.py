"""What JAX says of derivatives by other means than rules of functions reaches ours.

The oracle is `jax.grad` and `jax.jvp` of the very same functions. Of the drawn programs
JAX's derivatives are lowered and run in the reference interpreter, as ours are: to
compile them would take most of the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.full_stack import LEGAL, renamed
from helpers.oracles.jax_gradients import (
    Case,
    assert_close,
    check_jvp,
    check_vjp,
    derived_module,
    transformed,
)
from helpers.random_programs import jax_stops
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from jax import lax
from jax.scipy import special
from jax.scipy.sparse import linalg

import pcp
from pcp.errors import IRError, MissingRule

stop = lax.stop_gradient
X = np.array([0.3, 0.7, 1.2], np.float32)
#: Drawn programs in a module.
GROUP = 20


# --- drawn programs ---


def _whole(seeds: range, **options: Any) -> Callable[[Any, Any], Any]:
    """The sum of the programs, each at its own row of the arguments."""
    drawn = [jax_stops.program(seed, **options) for seed in seeds]
    return lambda x, y: sum(f(x[i], y[i]) for i, f in enumerate(drawn))


def _rows(seeds: range) -> list[np.ndarray]:
    return [np.stack(v) for v in zip(*map(jax_stops.arguments, seeds), strict=True)]


def _jax(interpreter: Interpreter, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function of JAX's gives, in the interpreter."""
    return interpreter.run(transformed(jax.jit(fn).lower(*args).as_text()), args)


def _compare(seeds: range, ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for i, seed in enumerate(seeds if np.ndim(b) else []):
            assert_close(a[i], b[i], 1e-5, f"program {seed}")


def _check_gradients(seeds: range, interpreter: Interpreter, depth: int) -> None:
    """Our gradients of drawn programs are JAX's."""
    fn, rows = _whole(seeds, depth=depth), _rows(seeds)
    theirs = _jax(interpreter, jax.grad(fn, (0, 1)), *rows)
    text = transformed(str(pcp.from_jax(fn, *rows, params=[0, 1])), "pcp-grad")
    _compare(seeds, interpreter.run(text, rows)[1:], theirs)


@sampled("group", range(10), 2)
def test_drawn_gradients(group: int, interpreter: Interpreter) -> None:
    seeds = range(GROUP * group, GROUP * (group + 1))
    _check_gradients(seeds, interpreter, depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(20, 40))
def test_deeper_gradients(group: int, interpreter: Interpreter) -> None:
    seeds = range(GROUP * group, GROUP * (group + 1))
    _check_gradients(seeds, interpreter, depth=3)


@pytest.mark.slow  # a guard of the above
def test_the_drawn_stops_matter(interpreter: Interpreter) -> None:
    """Most gradients would be others without stops: what loses one is seen."""
    seeds, rows = range(GROUP), _rows(range(GROUP))
    without, theirs = (
        _jax(interpreter, jax.grad(_whole(seeds, stop=s), (0, 1)), *rows)
        for s in (lambda v: v, stop)
    )
    off = sum(np.abs(a - b).max(1) for a, b in zip(theirs, without, strict=True))
    assert np.sum(off > 1e-3) > GROUP // 2


def test_drawn_tangents(interpreter: Interpreter) -> None:
    seeds = range(400, 440)
    fn, rows = _whole(seeds, ruled=False), _rows(seeds)
    given = [np.cos(row) for row in rows]
    theirs = _jax(interpreter, lambda *a: jax.jvp(fn, a[:2], a[2:]), *rows, *given)
    text = transformed(str(pcp.from_jax(fn, *rows)), "pcp-jvp")
    value, tangent = interpreter.run(text, [*rows, *given])
    assert_close(value, theirs[0], 1e-5, "value")
    assert_close(tangent, theirs[1], 1e-5, "tangent")


@pytest.mark.slow  # order two has cases of its own
@pytest.mark.parametrize("again", ["pcp-vjp", "pcp-jvp"])
def test_drawn_derivatives_of_derivatives(again: str, interpreter: Interpreter) -> None:
    seeds = range(500, 510)
    fn, rows = _whole(seeds, ruled=False), _rows(seeds)
    slope = jax.value_and_grad(fn, (0, 1))
    given = [np.cos(row) for row in rows]

    def theirs(*args: Any) -> Any:
        if again == "pcp-jvp":
            return jax.jvp(slope, args[:2], args[2:])[1][1]
        return jax.vjp(slope, *args[:2])[1]((jnp.float32(0.0), args[2:]))

    zero = [] if again == "pcp-jvp" else [np.zeros((), np.float32)]
    module = str(pcp.from_jax(fn, *rows, params=[0, 1]))
    text = transformed(module, "pcp-grad", again)
    found = interpreter.run(text, [*rows, *zero, *given])[-2:]
    _compare(seeds, found, _jax(interpreter, theirs, *rows, *given))


def _derived(seed: int) -> str:
    """`@p<seed>_main_grad` and `@p<seed>_main_jvp` of a drawn program, for IREE."""
    drawn = jax_stops.program(seed, ruled=False)
    found = pcp.from_jax(drawn, *jax_stops.arguments(seed), params=[0, 1])
    return renamed(pcp.run_passes(found, f"pcp-grad,pcp-jvp,{LEGAL}"), f"p{seed}_")


# Slow: the interpreter has such derivatives above, and IREE such carries in
# tests/passes/legalize/test_keep_carries.py.
@pytest.mark.slow
def test_drawn_gradients_and_tangents_in_iree(
    iree: Iree, interpreter: Interpreter
) -> None:
    seeds = range(608, 609)  # 608 has a carry that IREE alone would not compile
    rows = _rows(seeds)
    given = [np.cos(row) for row in rows]
    theirs = _jax(interpreter, jax.grad(_whole(seeds, ruled=False), (0, 1)), *rows)
    calls: dict[str, list[np.ndarray]] = {}
    for i, seed in enumerate(seeds):
        calls[f"p{seed}_main_grad"] = [row[i] for row in rows]
        calls[f"p{seed}_main_jvp"] = [row[i] for row in [*rows, *given]]
    found = iter(iree.run_all("\n".join(map(_derived, seeds)), calls))
    for i, seed in enumerate(seeds):
        pair = [next(found), next(found)]
        assert not any(isinstance(v, str) for v in pair), f"program {seed}: {pair}"
        (_, *gradient), (_, tangent) = pair
        wanted = [v[i] for v in theirs]
        for ours, wants in zip(gradient, wanted, strict=True):
            assert_close(ours, wants, 1e-5, f"program {seed}")
        product = sum(np.sum(v * t[i]) for v, t in zip(wanted, given, strict=True))
        assert_close(tangent, np.float32(product), 1e-5, f"tangent of {seed}")


# --- what else JAX knows and its lowering does not say ---


A = jnp.array([[3.0, 1.0, 0.0], [1.0, 4.0, 1.0], [0.0, 1.0, 5.0]])


def _linear_solve(x: Any, **options: Any) -> Any:
    """By what is no solution; the derivative is the implicit one all the same."""

    def rough(of: Any, b: Any) -> Any:
        return linalg.cg(of, b, maxiter=1)[0]

    return lax.custom_linear_solve(lambda v: A @ v * (1 + x), x**2, rough, **options)


def _rough(of: Any, b: Any) -> Any:
    return linalg.cg(of, b, maxiter=2)[0]


def _root(x: Any) -> Any:
    """y³ = Σx by a root that is rounded, of which there is no other derivative."""
    return lax.custom_root(
        lambda y: y**3 - jnp.sum(x),
        jnp.float32(1.0),
        lambda f, y: jnp.round(lax.fori_loop(0, 20, lambda _, v: v - f(v) / 8, y), 4),
        lambda g, y: y / g(1.0),
    )


def _linear_call(x: Any) -> Any:
    """Five times its true transpose."""
    scale = jnp.array([1.0, 2.0, 3.0])
    return jax.custom_derivatives.linear_call(
        lambda r, v: r * v, lambda r, t: 5.0 * r * t, scale, jnp.sin(x)
    )


@jax.custom_jvp
def _doubled(x: Any) -> Any:
    return 2.0 * x


@_doubled.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return _doubled(*primals), 3.0 * _doubled(*tangents)


def _gamma(x: Any) -> Any:
    return jax.random.gamma(jax.random.key(0), x)


BOTH: dict[str, Callable[[Any], Any]] = {
    "linear_solve": lambda x: _linear_solve(x, transpose_solve=_rough),
    "linear_solve symmetric": lambda x: linalg.cg(lambda v: A @ v * jnp.sum(x), x)[0],
    "root": _root,
    "a rule that applies the function to its tangent": _doubled,
    "gamma samples": _gamma,
    "stops of complex numbers": lambda x: jnp.real(stop(x + 1j * x) * (x + 2j * x)),
    "stops of 16 bits": lambda x: stop(x.astype(jnp.float16)) * x,
    "stops in a reduction's body": lambda x: lax.reduce(
        x, np.float32(0.0), lambda a, b: a + stop(b), (0,)
    ),
    "stopped keys of a sort": lambda x: lax.sort((stop(-x), x * x), num_keys=1)[1],
    "barrier": lambda x: lax.optimization_barrier(stop(x) * x) ** 2,
    "reduce_precision": lambda x: lax.reduce_precision(1.2345 * x, 8, 3) ** 2,
}
SLOW: dict[str, Callable[[Any], Any]] = {  # JAX compiles them for seconds
    "gammainc": lambda x: special.gammainc(x, x + 1) * special.gammaincc(x, x),
    "linear_solve of vmap": jax.vmap(
        lambda x: _linear_solve(x, transpose_solve=_rough)
    ),
    "exponential integrals": lambda x: special.exp1(x) * special.expi(-x),
    "samples of beta": lambda x: jax.random.beta(jax.random.key(1), x, x + 1),
}
REVERSE: dict[str, Callable[[Any], Any]] = {
    "linear_call": _linear_call,
    "custom_gradient": jax.custom_gradient(lambda x: (x**2, lambda g: 7.0 * g * x)),
}


def _case(fn: Callable[[Any], Any], x: np.ndarray) -> Case:
    return Case(fn.__name__, fn, (x,), text=str(pcp.from_jax(fn, x)), tolerance=2e-5)


@pytest.mark.parametrize("name", [*BOTH, *REVERSE])
def test_reverse(name: str, interpreter: Interpreter) -> None:
    check_vjp(_case((BOTH | REVERSE)[name], X), interpreter)


@pytest.mark.parametrize("name", BOTH)
def test_forward(name: str, interpreter: Interpreter) -> None:
    check_jvp(_case(BOTH[name], X), interpreter)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_both_of_the_slow_ones(name: str, interpreter: Interpreter) -> None:
    case = _case(SLOW[name], np.stack([X, X + 1]) if "vmap" in name else X)
    check_vjp(case, interpreter)
    check_jvp(case, interpreter)


def _by_cg(x: Any) -> Any:
    return linalg.cg(lambda v: A @ v * (1 + jnp.sum(x)), x)[0]


def _by_division(x: Any) -> Any:
    """The solver is stopped, as in `jnp.linalg.solve`."""
    held = lax.stop_gradient(3 + x)

    def solve(_: Any, b: Any) -> Any:
        return b / held

    return lax.custom_linear_solve(lambda v: (3 + x) * v, jnp.sin(x), solve, solve)


@pytest.mark.parametrize("fn", [_by_cg, _by_division])
@pytest.mark.parametrize("again", ["pcp-vjp", "pcp-jvp"])
def test_a_linear_solve_at_order_two(
    again: str, fn: Callable[[Any], Any], interpreter: Interpreter
) -> None:
    def slope(x: Any, g: Any) -> Any:
        value, pull = jax.vjp(fn, x)
        return value, *pull(g)

    once = str(derived_module(str(pcp.from_jax(fn, X)), "pcp-vjp", expand=False))
    case = Case("slope", slope, (X, X + 1), text=once, tolerance=1e-4)
    (check_vjp if again == "pcp-vjp" else check_jvp)(case, interpreter)


def test_what_is_not_linear_in_a_linear_call_has_no_derivative(
    interpreter: Interpreter,
) -> None:
    """JAX asserts; here it is an error at the call."""

    def fn(x: Any, scale: Any) -> Any:
        return jax.custom_derivatives.linear_call(
            lambda r, v: r * v, lambda r, t: r * t, scale, x
        )

    text = str(pcp.from_jax(fn, X, X))
    for mode in ("pcp-vjp", "pcp-jvp"):
        with pytest.raises(MissingRule, match=r"by its operand 0, .*not linear in"):
            transformed(text, mode)
        derived = transformed(text, f"{mode}{{wrt=0}}")
        by_x = interpreter.run(derived, [X, X, X])[-1]
        np.testing.assert_array_equal(by_x, X * X)


# --- what is not kept is said ---


def test_a_solve_without_a_transpose_is_refused() -> None:
    with pytest.raises(IRError, match=r"no transpose_solve.*symmetric=True.*rules="):
        pcp.from_jax(_linear_solve, X)
    pcp.from_jax(_linear_solve, X, rules=False)


def test_without_rules_stops_stay() -> None:
    def fn(x: Any) -> Any:
        return jnp.sum(stop(x) * jax.nn.relu(x))

    text = str(pcp.from_jax(fn, X, rules=False))
    assert "composite" not in text
    assert text.count("pcp.stop_gradient") == 1


def test_integers_and_constants_need_no_stop() -> None:
    text = str(pcp.from_jax(lambda x, n: x * stop({"n": n, "b": n > 2})["n"], X, 3))
    assert "pcp.stop_gradient" not in text


def test_a_rule_that_stops_its_tangent_has_no_transpose(
    interpreter: Interpreter,
) -> None:
    @jax.custom_jvp
    def fn(x: Any) -> Any:
        return x * x

    @fn.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        return fn(*primals), stop(*tangents) * 3.0

    case = _case(fn, X)
    check_jvp(case, interpreter)
    with pytest.raises(MissingRule, match="rule of @fn stops a tangent"):
        check_vjp(Case("ours", jnp.square, (X,), text=case.text), interpreter)
