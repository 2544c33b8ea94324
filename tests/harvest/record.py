"""Record the derivative cases of JAX's own tests, with JAX's answers.

    git clone https://github.com/jax-ml/jax    # the tests are not in the wheel
    python tests/harvest/record.py --jax-tests jax/tests --out sample.zip
    python tests/harvest/record.py --jax-tests jax/tests --full \
        --without sample.zip --out full.zip

The tests run with `check_grads` replaced: instead of comparing with differences,
the replacement lowers the function and stores its VJP and JVP on random vectors.
Needs jax and absl-py. The same checkout and jax give the same archive.
"""

import argparse
import importlib
import os
import random
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.oracles import recorded_cases

#: Test modules with calls of `check_grads` on functions of lax.
MODULES = ("lax_autodiff_test",)

#: Tests of which --full takes so many at random: they are 17,280 of 19,794 programs.
SAMPLED = {"testConvGeneralDilatedGrad": 250}

#: Cases a test method generates: JAX's default, and more than any has.
DEFAULT, EVERY = 10, 100_000


class Recorder:
    """Stands in for `check_grads` and keeps what it is called with."""

    def __init__(self, known: set[object]) -> None:
        self.cases: list[recorded_cases.Recorded] = []
        self.failures: list[str] = []
        self.calls = 0
        self._test = ""
        self._of_test = 0
        self._known = known

    def begin(self, test: str) -> None:
        """The calls from now on are of `test`."""
        self._test, self._of_test = test, 0

    def __call__(
        self, f: Callable[..., Any], args: Any, order: int, *_: Any, **__: Any
    ) -> None:
        import jax
        import jax.numpy as jnp

        self.calls += 1
        self._of_test += 1
        leaves, tree = jax.tree.flatten(tuple(args))
        inputs = [jnp.asarray(x) for x in leaves]

        def flat(*values: Any) -> list[Any]:
            return jax.tree.leaves(f(*jax.tree.unflatten(tree, values)))

        text = jax.jit(flat, keep_unused=True).lower(*inputs).as_text()
        if (key := identity(text, inputs)) in self._known:
            return
        self._known.add(key)
        name = f"{self._test}/{self._of_test}"
        self.cases.append(answers(name, text, flat, inputs, order))


def identity(text: str, inputs: Any) -> object:
    """What makes two cases one: the program, and scalars' values (edges of an op)."""
    scalars = all(np.ndim(x) == 0 for x in inputs)
    return text, tuple(np.asarray(x).tobytes() for x in inputs) if scalars else ()


def stored(values: Any) -> recorded_cases.Arrays:
    """Arrays of numpy; a copy that no device owns."""
    return tuple(np.array(x) for x in values)


def with_wrt(f: Callable[..., list[Any]], inputs: list[Any]) -> tuple[Any, list[Any]]:
    """(f of its floating-point inputs alone, those inputs)."""
    where = [i for i, x in enumerate(inputs) if recorded_cases.is_float(x)]

    def of_floats(*floats: Any) -> list[Any]:
        values = list(inputs)
        for i, x in zip(where, floats, strict=True):
            values[i] = x
        return f(*values)

    return of_floats, [inputs[i] for i in where]


def pulled(f: Callable[..., list[Any]], floats: Any, drawn: Any) -> Any:
    """(results, gradients) of f with cotangents for the floating-point results."""
    import jax

    results, pull = jax.vjp(f, *floats)
    rest = iter(drawn)
    seeds = [
        next(rest)
        if recorded_cases.is_float(r)
        else np.zeros(r.shape, jax.dtypes.float0)
        for r in results
    ]
    return results, list(pull(seeds))


def answers(
    name: str, text: str, f: Callable[..., list[Any]], inputs: list[Any], order: int
) -> recorded_cases.Recorded:
    """JAX's VJP and JVP, and the VJP of the VJP from order 2 on."""
    import jax

    of_floats, floats = with_wrt(f, inputs)
    seed = recorded_cases.seed_of(text)
    shapes = jax.eval_shape(of_floats, *floats)
    cotangents = recorded_cases.draw(shapes, seed + 1)
    results, gradients = pulled(of_floats, floats, cotangents)
    directions = tuple(recorded_cases.draw(floats, seed + 2))
    _, pushed = jax.jvp(of_floats, tuple(floats), directions)
    tangents = [
        t for r, t in zip(results, pushed, strict=True) if recorded_cases.is_float(r)
    ]
    second: list[Any] = []
    if order >= 2:

        def derivative(*values: Any) -> list[Any]:
            first, rest = values[: len(floats)], values[len(floats) :]
            results, gradients = pulled(of_floats, first, rest)
            return [*results, *gradients]

        outputs = recorded_cases.draw([*results, *gradients], seed + 3)
        _, second = pulled(derivative, [*floats, *cotangents], outputs)
    return recorded_cases.Recorded(
        name,
        text,
        stored(inputs),
        stored(results),
        stored(gradients),
        stored(tangents),
        stored(second),
    )


def import_tests(folder: Path, recorder: Recorder) -> Iterator[Any]:
    """The test modules, imported with the recorder in place."""
    import jax._src.public_test_util
    import jax._src.test_util
    import jax.test_util

    for module in (jax._src.public_test_util, jax._src.test_util, jax.test_util):
        module.check_grads = recorder  # pyright: ignore[reportAttributeAccessIssue]
    sys.path.insert(0, str(folder))
    for name in MODULES:
        yield importlib.import_module(name)


def chosen(tests: list[Any], full: bool) -> list[Any]:
    """All, but of the methods in `SAMPLED` a fixed random choice."""
    if not full:
        return tests
    kept = []
    rest: dict[str, list[Any]] = {prefix: [] for prefix in SAMPLED}
    for test in tests:
        method = method_name(test)
        prefix = next((p for p in SAMPLED if method.startswith(p)), None)
        (kept if prefix is None else rest[prefix]).append(test)
    for prefix, found in rest.items():
        count = min(SAMPLED[prefix], len(found))
        kept += random.Random(prefix).sample(found, count)
    return kept


def method_name(test: Any) -> str:
    """The generated method, `testOpGrad7`: its id would print addresses."""
    return test._testMethodName


def flattened(suite: Any) -> Iterator[Any]:
    """The test cases of a suite of suites."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flattened(item)
        else:
            yield item


def record(folder: Path, full: bool, known: set[object]) -> Recorder:
    """Run the tests of a checkout with the recorder."""
    recorder = Recorder(known)
    loader = unittest.TestLoader()
    for module in import_tests(folder, recorder):
        tests = list(flattened(loader.loadTestsFromModule(module)))
        for test in chosen(tests, full):
            recorder.begin(method_name(test))
            outcome = unittest.TestResult()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                test.run(outcome)
            for _, trace in outcome.errors + outcome.failures:
                line = trace.strip().splitlines()[-1]
                recorder.failures.append(f"{method_name(test)}: {line}")
    return recorder


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jax-tests", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--full", action="store_true", help="every generated case")
    parser.add_argument("--without", type=Path, help="leave out this archive's cases")
    options = parser.parse_args()
    for name in MODULES:
        if not (options.jax_tests / f"{name}.py").exists():
            parser.error(
                f"{options.jax_tests} has no {name}.py: clone "
                "https://github.com/jax-ml/jax and give its folder tests/ "
                "(the wheel does not hold the tests)"
            )
    return options


def main() -> None:
    """Record, save, count."""
    options = parsed()
    sys.argv = sys.argv[:1]  # absl reads the rest
    cases = EVERY if options.full else DEFAULT
    os.environ["JAX_NUM_GENERATED_CASES"] = str(cases)
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    known = set()
    if options.without:
        known = {identity(c.text, c.args) for c in recorded_cases.load(options.without)}
    recorder = record(options.jax_tests, options.full, known)
    recorded_cases.save(options.out, recorder.cases)
    size = options.out.stat().st_size / 2**20
    print(f"{recorder.calls} calls, {len(recorder.cases)} programs, {size:.1f} MiB")
    for failure in recorder.failures:
        print(f"not recorded: {failure}")


if __name__ == "__main__":
    main()
