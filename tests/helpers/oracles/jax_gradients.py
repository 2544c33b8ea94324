"""Cases of derivatives, and their comparison with `jax.vjp` and `jax.jvp`.

A case is a JAX function and its arguments; jax lowers it to StableHLO, pcp
differentiates that, the reference interpreter runs it, and jax is the oracle.
`text` replaces the lowering for ops that jax never emits.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from helpers.servers.evaluator import Evaluator

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse

TOLERANCE = 1e-5

# Every case compiles many tiny programs once: optimizing them is lost time.
jax.config.update("jax_disable_most_optimizations", True)

#: A program of XLA in a third of the time. Numbers below the normal ones are zero in
#: it, and it reads u8 indices of scatters wrong: derivatives of a few drawn numbers.
once = functools.partial(
    jax.jit, compiler_options={"xla_cpu_use_fusion_emitters": False}
)


@dataclass(frozen=True, eq=False)
class Case:
    """One function with arguments, equal to itself alone."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    text: str | None = None
    wrt: tuple[int, ...] | None = None
    platform: str | None = None
    tolerance: float = TOLERANCE
    seed: int = 0
    close: Callable[[Any, Any, float, str], None] | None = None

    def __str__(self) -> str:
        return self.name

    def compare(self, ours: Any, theirs: Any, tolerance: float, what: str) -> None:
        """By `close`, or as `assert_close` does."""
        (self.close or assert_close)(ours, theirs, tolerance, f"{self.name}: {what}")


def array(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0):
    """Uniform float32 numbers, distinct with certainty enough."""
    rng = np.random.default_rng([seed, *shape])
    return rng.uniform(low, high, shape).astype(np.float32)


def positive(*shape: int, seed: int = 0):
    """Uniform float32 numbers in [0.3, 2]."""
    return array(*shape, seed=seed, low=0.3)


def integers(*shape: int, low: int = 0, high: int = 4, seed: int = 0):
    """Uniform int32 numbers in [low, high)."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape, np.int32)


def lowered(case: Case) -> str:
    """The StableHLO text of the case's function, `@main`."""
    if case.text is not None:
        return case.text
    return _lowered(case, jax.dtypes.canonicalize_dtype(np.float64).itemsize)


@functools.cache
def _lowered(case: Case, widest: int) -> str:
    """By jax, once for all tests of a case; `widest` is the size of its f64."""
    traced = jax.jit(case.fn, keep_unused=True).trace(*case.args)
    platforms = (case.platform,) if case.platform else None
    return traced.lower(lowering_platforms=platforms).as_text()


def transformed(text: str, *passes: str) -> str:
    """The text of `derived_module`, to be run: without what only a derivative reads."""
    module = derived_module(text, *passes)
    pipeline("builtin.module(pcp-inline-composites)").run(module)
    return str(module)


def derived_module(text: str, *passes: str, expand: bool = True) -> ir.Module:
    """`text` with `@main` replaced by what each of `passes` in turn makes of it.

    A pass is as in `pcp-vjp{wrt=0}`. CHLO is expanded last of all: the derivative of
    what an op of CHLO expands to is not the derivative of the op.
    """
    module = parse(text, _context())
    for pass_ in passes:
        _replace_main(module, pass_)
    clean = "symbol-dce" + ",func.func(chlo-legalize-to-stablehlo)" * expand
    with module.context:
        pipeline(f"builtin.module({clean})").run(module)
    return module


@functools.cache
def _context() -> ir.Context:
    """One for all modules: a context takes longer to make than most programs."""
    return make_context()


def _replace_main(module: ir.Module, pass_: str) -> None:
    """`@main` gives way to what `pass_{func=main name=derived}` adds."""
    name, _, options = pass_.partition("{")
    options = options.removesuffix("}")
    pipeline(f"builtin.module({name}{{func=main name=derived {options}}})").run(module)
    for op in module.body.operations:
        if ir.StringAttr(op.attributes["sym_name"]).value == "main":
            op.operation.erase()
            break
    derived = next(
        op.operation
        for op in module.body.operations
        if ir.StringAttr(op.attributes["sym_name"]).value == "derived"
    )
    with module.context:
        derived.attributes["sym_name"] = ir.StringAttr.get("main")
        derived.move_before(module.body.operations[0])


def is_float(x: Any) -> bool:
    """Whether a value has a cotangent."""
    return bool(np.issubdtype(np.asarray(x).dtype, np.inexact))


def positions(case: Case) -> list[int]:
    """The arguments to differentiate for."""
    if case.wrt is not None:
        return list(case.wrt)
    return [i for i, x in enumerate(case.args) if is_float(x)]


def as_given(x: Any) -> np.ndarray:
    """An argument as jax takes it: in the type of 32 bits for one of 64."""
    found = np.asarray(x)
    return found.astype(jax.dtypes.canonicalize_dtype(found.dtype), copy=False)


def leaves(value: Any) -> list[np.ndarray]:
    """Results of a function as a flat list of arrays."""
    return [np.asarray(x) for x in jax.tree.leaves(value)]


def random_like(values: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """A standard normal array of each shape and dtype."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(v.shape), v.dtype) for v in values]


def _of_wrt(case: Case) -> Callable[..., list[Any]]:
    """The results as a flat list, of the arguments to differentiate for."""
    where = positions(case)

    def of_wrt(*floats: Any) -> list[Any]:
        args = list(case.args)
        for i, x in zip(where, floats, strict=True):
            args[i] = x
        return jax.tree.leaves(case.fn(*args))

    return of_wrt


def _types_and_seeds(case: Case) -> tuple[list[Any], list[np.ndarray]]:
    """(shape and dtype of each result, random cotangents of those of floats)."""
    floats = [case.args[i] for i in positions(case)]
    types = jax.eval_shape(_of_wrt(case), *floats)
    return types, random_like(
        [t for t in types if np.issubdtype(t.dtype, np.inexact)], case.seed + 1
    )


def reference_vjp(case: Case) -> tuple[list[np.ndarray], list[np.ndarray], Any]:
    """(results, random cotangents, gradients) by jax.

    Jitted as one program: outside of `jit`, jax compiles a program for each op.
    """
    types, seeds = _types_and_seeds(case)

    @once
    def both(floats: Sequence[Any], given: Sequence[Any]) -> Any:
        results, pull = jax.vjp(_of_wrt(case), *floats)
        return results, pull(_cotangents(types, given))

    results, gradients = both([case.args[i] for i in positions(case)], seeds)
    return leaves(results), seeds, leaves(gradients)


def _cotangents(types: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """One for each result: of floats what is given, of others jax's own zeros."""
    rest = iter(given)
    return [
        next(rest)
        if np.issubdtype(t.dtype, np.inexact)
        else np.zeros(t.shape, jax.dtypes.float0)
        for t in types
    ]


def assert_close(ours: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Relative, entry by entry; infinities and NaN must lie alike."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} and {theirs.shape}"
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite], err_msg=what)
    scale = float(np.abs(theirs[finite]).max(initial=0.0))
    np.testing.assert_allclose(
        ours[finite],
        theirs[finite],
        rtol=tolerance,
        atol=tolerance * min(max(scale, 0.1), 1.0),  # rounding of terms of size 1
        err_msg=what,
    )


#: Of a tensor that is zero in truth: what rounding of terms of size one leaves.
ZERO = 1e-6


def assert_near(ours: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Relative to the tensor's own largest element, however small that is."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} and {theirs.shape}"
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite], err_msg=what)
    ours, theirs = (x[finite].astype(np.float64) for x in (ours, theirs))
    scale = float(np.abs(theirs).max(initial=0.0))
    allowed = tolerance * scale if scale else ZERO
    worst = float(np.abs(ours - theirs).max(initial=0.0))
    assert worst <= allowed, f"{what}: {worst:.1e} off, of a largest {scale:.1e}"


def wrt_option(case: Case) -> str:
    """`wrt=...` for the pass."""
    return "wrt=" + ",".join(map(str, positions(case)))


def check_vjp(case: Case, interpreter: Evaluator) -> None:
    """Our VJP of the case agrees with jax's."""
    results, seeds, gradients = reference_vjp(case)
    derived = transformed(lowered(case), f"pcp-vjp{{{wrt_option(case)}}}")
    arguments = [as_given(x) for x in case.args]
    ours = interpreter.run(derived, [*arguments, *seeds])
    assert len(ours) == len(results) + len(gradients)
    for i, (a, b) in enumerate(zip(ours, [*results, *gradients], strict=True)):
        kind = "result" if i < len(results) else "gradient"
        index = i if i < len(results) else i - len(results)
        case.compare(a, b, case.tolerance, f"{kind} {index}")


def reference_jvp(case: Case) -> tuple[list[np.ndarray], list[np.ndarray], Any]:
    """(results, random tangents, tangents of the floating-point results) by jax."""
    where = positions(case)
    primals = [as_given(case.args[i]) for i in where]
    tangents = random_like(primals, case.seed + 2)

    @once
    def both(floats: Sequence[Any], given: Sequence[Any]) -> Any:
        results, pushed = jax.jvp(_of_wrt(case), tuple(floats), tuple(given))
        kept = [
            t
            for r, t in zip(results, pushed, strict=True)
            if np.issubdtype(r.dtype, np.inexact)
        ]
        return results, kept

    results, pushed = both(primals, tangents)
    return leaves(results), tangents, leaves(pushed)


def check_jvp(case: Case, interpreter: Evaluator) -> None:
    """Our JVP of the case agrees with jax's."""
    results, tangents, pushed = reference_jvp(case)
    derived = transformed(lowered(case), f"pcp-jvp{{{wrt_option(case)}}}")
    arguments = [as_given(x) for x in case.args]
    ours = interpreter.run(derived, [*arguments, *tangents])
    assert len(ours) == len(results) + len(pushed)
    for i, (a, b) in enumerate(zip(ours, [*results, *pushed], strict=True)):
        kind = "result" if i < len(results) else "tangent"
        case.compare(a, b, case.tolerance, f"{kind} {i}")


def derivative_case(case: Case) -> Case:
    """The VJP of a case as a case of its own: what order two differentiates.

    Its arguments are those to differentiate for, then the cotangents; the others
    are constants of the program.
    """
    types, seeds = _types_and_seeds(case)
    where = positions(case)

    def fn(*inputs: Any) -> list[Any]:
        args, cotangents = list(inputs[: len(case.args)]), inputs[len(case.args) :]

        def of_wrt(*floats: Any) -> list[Any]:
            for i, x in zip(where, floats, strict=True):
                args[i] = x
            return jax.tree.leaves(case.fn(*args))

        values, pull = jax.vjp(of_wrt, *(inputs[i] for i in where))
        return [*values, *jax.tree.leaves(pull(_cotangents(types, cotangents)))]

    vjp = f"pcp-vjp{{{wrt_option(case)}}}"
    text = str(derived_module(lowered(case), vjp, expand=False))
    every = (*case.args, *seeds)
    floats = tuple(i for i, x in enumerate(every) if is_float(x))
    wrt = tuple(i for i in floats if i in where or i >= len(case.args))
    return Case(
        case.name,
        fn,
        every,
        text=text,
        wrt=wrt,
        tolerance=20 * case.tolerance,
        close=case.close,
    )
