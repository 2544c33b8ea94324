"""Recorded cases run again: pcp's derivatives against what JAX said.

The interpreter's bindings hand out neither bfloat16 nor complex results, so each
program is made to return float32, and real and imaginary parts.
"""

from collections.abc import Sequence

import numpy as np
from helpers.oracles.jax_gradients import assert_close, derived_module
from helpers.oracles.recorded_cases import Recorded, draw, is_float
from helpers.servers.evaluator import Evaluator

from pcp.autodiff.core import functions
from pcp.compiler.catalog import pipeline
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

#: Relative tolerances by the narrowest type in the program: float32 as everywhere;
#: else a few roundings to 8 or 11 bits, which XLA and the interpreter place
#: differently (XLA computes chains of ops in float32 and rounds once).
TOLERANCES = {"bf16": 3e-2, "f16": 4e-3, "f32": 1e-5}

#: A derivative of a derivative cancels more.
ORDER_TWO = 20.0

#: Tests whose scatters have windows partly outside of the operand. The interpreter
#: writes the part that is inside, XLA drops such a window, and so does the program
#: that pcp-legalize makes: that one is run.
WINDOWS_OUTSIDE = ("testScatterAddGrad",)

#: Cases that need another tolerance, and why: all exceptions that there are.
LOOSER = {
    "testConvGeneralDilatedGrad1576/2": (
        3e-5,
        "JAX lowers a complex convolution to three real ones, whose differences "
        "cancel: one entry of 16 is 1.5e-5 off, in another order of summation",
    ),
}


def tolerance(case: Recorded) -> float:
    """The case's own, or the entry of the first type that occurs."""
    if case.name in LOOSER:
        return LOOSER[case.name][0]
    return next(
        value
        for kind, value in TOLERANCES.items()
        if f"x{kind}>" in case.text or f"<{kind}>" in case.text
    )


def readable(module: ir.Module) -> str:
    """The program with results that the bindings can hand out."""
    with module.context:
        function = functions.find(module, "main")
        *_, end = functions.body(function).operations
        with ir.InsertionPoint(end), end.location:
            results = [r for value in end.operands for r in _readable(value)]
        functions.finish(function, results)
    return str(module)


def _readable(value: ir.Value) -> list[ir.Value]:
    if not hlo.is_differentiable(value):
        return [value]
    if hlo.is_complex(hlo.element_type(value)):
        return [hlo.real(value), hlo.imag(value)]
    return [hlo.convert(value, ir.F32Type.get())]


def parts(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a readable program returns for these results."""
    split = []
    for x in arrays:
        if np.iscomplexobj(x):
            split += [np.real(x), np.imag(x)]
        else:
            split.append(x.astype(np.float32) if is_float(x) else x)
    return split


def _compare(
    case: Recorded,
    derived: ir.Module,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    loosened: float,
    interpreter: Evaluator,
) -> None:
    if case.name.startswith(WINDOWS_OUTSIDE):
        pipeline("builtin.module(pcp-legalize)").run(derived)
    ours = interpreter.run(readable(derived), inputs)
    theirs = parts(expected)
    assert len(ours) == len(theirs)
    allowed = loosened * tolerance(case)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert_close(a, b, allowed, f"{case.name}: result {i} of {len(ours)}")


def _pass(name: str, wrt: Sequence[int]) -> str:
    return f"{name}{{wrt={','.join(map(str, wrt))}}}"


def check_vjp(case: Recorded, interpreter: Evaluator) -> None:
    """Results and gradients are JAX's."""
    inputs = [*case.args, *draw(case.results, case.seed + 1)]
    expected = [*case.results, *case.gradients]
    derived = derived_module(case.text, _pass("pcp-vjp", case.wrt))
    _compare(case, derived, inputs, expected, 1.0, interpreter)


def check_jvp(case: Recorded, interpreter: Evaluator) -> None:
    """Results and tangents are JAX's."""
    floats = [case.args[i] for i in case.wrt]
    inputs = [*case.args, *draw(floats, case.seed + 2)]
    expected = [*case.results, *case.tangents]
    derived = derived_module(case.text, _pass("pcp-jvp", case.wrt))
    _compare(case, derived, inputs, expected, 1.0, interpreter)


def check_second(case: Recorded, interpreter: Evaluator) -> None:
    """The VJP of the VJP is JAX's."""
    assert case.second
    cotangents = draw(case.results, case.seed + 1)
    first = [*case.args, *cotangents]
    values = [*case.results, *case.gradients]
    inputs = [*first, *draw(values, case.seed + 3)]
    wrt = [*case.wrt, *range(len(case.args), len(first))]
    passes = [_pass("pcp-vjp", case.wrt), _pass("pcp-vjp", wrt)]
    derived = derived_module(case.text, *passes)
    expected = [*values, *case.second]
    _compare(case, derived, inputs, expected, ORDER_TWO, interpreter)
