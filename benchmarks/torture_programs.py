"""Programs that others wrote, for benchmarks/torture.py, with what JAX makes of them.

    lax       every case of JAX's list of primitives, shapes, types and parameters
              (`jax._src.internal_test_util.test_harnesses`, from which StableHLO's
              testdata was made, too)
    scatters  those of them that are drawn over types, modes and shapes of scatters
    ops       JAX's table of element-wise functions, each with its types and shapes
    harvest   the derivatives recorded from JAX's tests (tests/harvest)
    autodiff  the losses of benchmarks/autodiff_programs.py, with their gradients

A section is a list of names and of functions that make a `Program`; a name stands for
the same program, arguments included, in every run.
"""

import itertools
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torture_comparison import (
    FACTORIZED,
    SUMS,
    TOLERANCES,
    Comparison,
    difference,
    unstable,
)

import pcp
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.runtime.memory.dtypes import numpy_dtype

ROOT = Path(__file__).resolve().parents[1]


def configure() -> None:
    """JAX as the sections want it, from the start of the process: with 64 bits."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")


class NotForJax(Exception):
    """JAX itself does not run the case here: nothing to compare with."""


@dataclass(frozen=True)
class Program:
    """A module as pcp is given it, as iree-compile is given it alone, and its oracle.

    `function` of the bundle takes `arguments`; `expected` are JAX's results.
    `module` is called inside of what judges it: an error there is one of pcp.
    """

    module: Callable[[], ir.Module]
    raw: Callable[[], str]
    arguments: list[np.ndarray]
    expected: list[np.ndarray]
    mode: str = "forward"
    function: str = "main"
    compare: Comparison | None = None
    tolerances: dict[str, float] = field(default_factory=dict)
    sums: bool = False

    def difference(self, ours: Sequence[np.ndarray]) -> str:
        """What is wrong with our results, or "". Sums are judged by the largest."""
        if self.compare:
            return self.compare(ours, self.expected)
        largest = np.inf if self.sums else 1.0
        return difference(ours, self.expected, self.tolerances, largest)


class Section(dict[str, Callable[[], Program]]):
    """Programs by name, made when they are wanted."""


def _stored(values: Any) -> list[np.ndarray]:
    return [np.array(x) for x in jax.tree.leaves(values)]


def of_jax(fn: Callable[..., Any], args: Sequence[Any], **rest: Any) -> Program:
    """A function of JAX's with arguments, judged by `jax.jit` on this processor."""
    args = [jax.tree.map(jnp.asarray, a) for a in args]
    try:
        lowered = jax.jit(fn, keep_unused=True).lower(*args)
        expected = _stored(lowered.compile()(*args))
    except Exception as error:
        raise NotForJax(f"{type(error).__name__}: {str(error)[:200]}") from error
    module = partial(pcp.from_jax, fn, *args, params=())
    return Program(module, lowered.as_text, _stored(args), expected, **rest)


# --- JAX's primitives ---


def lax_section(scatters: bool = False) -> Section:
    """The harnesses that JAX says it runs on a CPU; the drawn scatters are apart."""
    from jax._src.internal_test_util import test_harnesses

    runs = [h for h in test_harnesses.all_harnesses if h.filter("cpu")]
    section = Section()
    for harness in runs:
        if ("no_xla" in harness.name) is not scatters:
            continue
        name = harness.fullname
        if name in section:
            name = f"{name}_{len(section)}"
        section[name] = partial(_of_harness, harness, name)
    return section


def _of_harness(harness: Any, name: str) -> Program:
    random = np.random.RandomState(zlib.adler32(name.encode()) % 2**32)
    try:
        args = harness.dyn_args_maker(random)
    except Exception as error:
        raise NotForJax(f"{type(error).__name__}: {str(error)[:200]}") from error
    group = harness.group_name
    compare = FACTORIZED.get(group)
    if group == "sort" and not harness.params["is_stable"]:
        compare = unstable(harness.params["dimension"], harness.params["num_keys"])
    return of_jax(harness.dyn_fun, args, compare=compare, sums=group in SUMS)


# --- JAX's table of functions ---


def ops_section() -> Section:
    """The table's functions at every type and one choice of shapes after the other."""
    from jax._src.internal_test_util import lax_test_util

    groups = [[()], *lax_test_util.compatible_shapes]
    section = Section()
    for record in lax_test_util.lax_ops():
        for dtype, group in itertools.product(record.dtypes, groups):
            for shapes in _few(group, record.nargs):
                given = "_".join("x".join(map(str, s)) or "scalar" for s in shapes)
                name = f"{record.op}_{np.dtype(dtype).name}_{given}"
                section[name] = partial(_of_record, record, dtype, shapes, name)
    return section


def _few(group: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """Equal shapes, and two that are broadcast; `lax` itself takes equal ones alone."""
    return [(group[0],) * count]


def _of_record(record: Any, dtype: Any, shapes: Sequence[Any], name: str) -> Program:
    random = np.random.RandomState(zlib.adler32(name.encode()) % 2**32)
    make = record.rng_factory(random)
    args = [make(shape, dtype) for shape in shapes]
    given = record.tol if isinstance(record.tol, dict) else {}
    tolerances = {np.dtype(t).name: 2 * tol for t, tol in given.items()}
    return of_jax(getattr(jax.lax, record.op), args, tolerances=tolerances)


# --- recorded derivatives ---


def _tests() -> None:
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))


def harvest_section() -> Section:
    """The VJP of each recorded program: its results and its gradients in one."""
    _tests()
    from helpers.oracles import recorded_cases

    section = Section()
    for archive in ("sample", "full"):
        path = ROOT / "tests" / "harvest" / "data" / f"{archive}.zip"
        for i, case in enumerate(recorded_cases.load(path)):
            section[f"{archive}_{i}_{case}"] = partial(_of_recorded, case)
    return section


def _of_recorded(case: Any) -> Program:
    from helpers.oracles import jax_gradients, recorded_cases, recorded_replay

    wrt = ",".join(map(str, case.wrt))

    def module() -> ir.Module:
        return jax_gradients.derived_module(case.text, f"pcp-vjp{{wrt={wrt}}}")

    tolerance = recorded_replay.tolerance(case)
    return Program(
        module,
        lambda: str(module()),
        [*case.args, *recorded_cases.draw(case.results, case.seed + 1)],
        [*case.results, *case.gradients],
        tolerances={name: tolerance for name in TOLERANCES},
    )


# --- whole gradients ---


def autodiff_section() -> Section:
    """`mode="grad"` of each loss against `jax.value_and_grad`."""
    import autodiff_programs

    losses = autodiff_programs.PROGRAMS.items()
    return Section({name: partial(_of_loss, make) for name, make in losses})


def _of_loss(make: Callable[[], Any]) -> Program:
    program = make()
    args = (program.weights, *program.data)
    derivative = jax.jit(jax.value_and_grad(program.loss), keep_unused=True)
    lowered = derivative.lower(*args)
    return Program(
        partial(pcp.from_jax, program.loss, *args),
        lowered.as_text,
        _stored(args),
        _stored(lowered.compile()(*args)),
        mode="grad",
        function="grad",
        # Its weights are f32: results of f64 have gone through products of f32.
        tolerances={"float32": 1e-4, "float64": 1e-6},
    )


# --- texts ---


def by_xla(text: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of `@main` as XLA computes them on this processor."""
    from jax._src import compiler, xla_bridge
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
    from jax.extend.mlir import ir as jax_ir
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        module = jax_ir.Module.parse(text)
        module.operation.attributes["sym_name"] = jax_ir.StringAttr.get("jit_text")
        backend = xla_bridge.get_backend("cpu")
        devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        made = compiler.backend_compile_and_load(backend, module, devices, options, [])
    return _stored(made.execute([jax.device_put(x) for x in arguments]))


def drawn(module: ir.Module) -> list[np.ndarray]:
    """Arguments for `@main`: normal numbers, small integers."""
    (function,) = [op for op in module.body.operations if op.name.value == "main"]
    random = np.random.default_rng(0)
    values = []
    for argument in function.regions[0].blocks[0].arguments:
        shape, kind = argument.type.shape, numpy_dtype(str(argument.type.element_type))
        made = random.normal(size=shape) + 1j * random.normal(size=shape)
        if kind.kind in "biu":
            made = np.abs(3 * made)
        values.append(np.asarray(made if kind.kind == "c" else made.real).astype(kind))
    return values


class Texts(Section):
    """A program by the path of its text; a pickle beside it has the arguments."""

    def __missing__(self, name: str) -> Callable[[], Program]:
        return partial(_of_text, Path(name))


def _of_text(path: Path) -> Program:
    text = path.read_text()
    arguments = pickle.loads(path.with_suffix(".pickle").read_bytes())
    try:
        expected = by_xla(text, arguments)
    except Exception as error:
        raise NotForJax(f"{type(error).__name__}: {str(error)[:200]}") from error
    return Program(lambda: parse(text), lambda: text, arguments, expected)


SECTIONS: dict[str, Callable[[], Section]] = {
    "autodiff": autodiff_section,
    "harvest": harvest_section,
    "lax": lax_section,
    "ops": ops_section,
    "scatters": partial(lax_section, scatters=True),
    "text": Texts,
}
