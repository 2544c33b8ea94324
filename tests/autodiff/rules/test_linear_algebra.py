"""Rules of linear algebra and Fourier transforms against jax.vjp."""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.cases.linear_algebra import FOURIER, SOLVE, cholesky
from helpers.oracles.full_stack import Group
from helpers.oracles.jax_gradients import (
    Case,
    array,
    assert_close,
    check_vjp,
    reference_vjp,
    transformed,
)
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from numpy.typing import ArrayLike

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse


class Unbatched:
    """The interpreter, which solves single systems only, given one at a time."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        module = parse(text)
        for op in list(module.body.operations[0].regions[0].blocks[0].operations):
            if op.operation.name == "stablehlo.triangular_solve":
                with module.context, ir.InsertionPoint(op), op.location:
                    _split_batch(op.operation)
        return self.interpreter.run(str(module), arguments)


def _split_batch(op: ir.Operation) -> None:
    shapes = [hlo.shape_of(x) for x in op.operands]
    if len(shapes[0]) != 3:
        return
    attributes = {name: op.attributes[name] for name in op.attributes}
    pieces = []
    for i in range(shapes[0][0]):
        a, b = (
            hlo.reshape(hlo.slice_(x, [i, 0, 0], [i + 1, *n[1:]]), n[1:])
            for x, n in zip(op.operands, shapes, strict=True)
        )
        x = hlo.op("triangular_solve", [a, b], [b.type], **attributes).result
        pieces.append(hlo.reshape(x, [1, *hlo.shape_of(x)]))
    op.results[0].replace_all_uses_with(hlo.concatenate(pieces, 0))
    op.erase()


@pytest.mark.parametrize("case", SOLVE, ids=str)
def test_solve(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, Unbatched(interpreter))


FOURIER_TOGETHER = Group(FOURIER)


@pytest.mark.slow  # legalized ones are in test_legalize_fourier.py
@pytest.mark.parametrize("case", FOURIER, ids=str)
def test_fourier(case: Case, iree: Iree) -> None:
    FOURIER_TOGETHER.check(case, iree)


def with_factor_given(text: str) -> str:
    """The program with its cholesky's result as a further argument.

    Neither the interpreter nor IREE runs the op itself.
    """
    module = parse(text)
    function = module.body.operations[0].operation
    block = function.regions[0].blocks[0]
    (op,) = [o for o in block.operations if o.operation.name == "stablehlo.cholesky"]
    with module.context, op.location:
        factor = block.add_argument(op.operation.results[0].type, op.location)
        op.operation.results[0].replace_all_uses_with(factor)
        *_, end = block.operations
        type_ = ir.FunctionType.get(
            [a.type for a in block.arguments], [v.type for v in end.operands]
        )
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
    op.operation.erase()
    return str(module)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("shape", [(3, 3), (1, 1), (2, 4, 4)], ids=str)
def test_cholesky(
    shape: tuple[int, ...], lower: bool, interpreter: Interpreter
) -> None:
    root = array(*shape) + 2 * np.eye(shape[-1], dtype=np.float32)
    matrix = root @ root.swapaxes(-1, -2)
    type_ = "x".join(map(str, shape)) + "xf32"
    text = f"""
func.func @main(%a: tensor<{type_}>) -> tensor<{type_}> {{
  %l = stablehlo.cholesky %a, lower = {str(lower).lower()} : tensor<{type_}>
  return %l : tensor<{type_}>
}}"""
    case = Case("cholesky", cholesky(lower), (matrix,))
    [factor], [g], [theirs] = reference_vjp(case)
    derived = with_factor_given(transformed(text, "pcp-vjp{wrt=0}"))
    _, ours = Unbatched(interpreter).run(derived, [matrix, g, factor])
    assert_close(ours, theirs, 1e-4, "cholesky")
