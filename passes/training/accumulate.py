"""pcp-accumulate: a large batch in pieces, inside the program.

The model's own @grad and @eval, for B samples, become private; in their place come
functions for N samples that go through them B at a time, in a loop, and give the mean
of losses and gradients. The sum is kept in float32, or in the gradients' own type if
that is wider: between pieces nothing leaves the device, and memory for activations is
that of one piece.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.core import functions, loops
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import Port
from pcp.passes.training.optimizers.numbers import scale, widen

Value = ir.Value
PIECE = "{}.piece"


@dataclass(frozen=True)
class Accumulate(Pass):
    """Let @grad and @eval take `batch` samples, in pieces of the model's own batch.

    Assumes the functions of `pcp-expand-training`, whose data have the batch as their
    first dimension, all the same one; `batch` is a multiple of it. A loss that is the
    mean over its batch stays that. 0 leaves everything as it is.

    Before, run as pcp-accumulate{batch=8}:

        func.func @grad(%w: tensor<4xf32>, %x: tensor<2x4xf32>)
            -> (tensor<f32>, tensor<4xf32>)

    After:

        func.func private @grad.piece(%w: tensor<4xf32>, %x: tensor<2x4xf32>) ...
        func.func @grad(%w: tensor<4xf32>, %x: tensor<8x4xf32>)
            -> (tensor<f32>, tensor<4xf32>) {
          %0:3 = stablehlo.while(%i = 0, %loss = 0.0, %g = 0.0) ... {
            %part = stablehlo.dynamic_slice %x, 2 * %i, 0, sizes = [2, 4]
            %1:2 = call @grad.piece(%w, %part)
            ...
          }
          %1 = stablehlo.multiply %0#1, 0.25
    """

    name = "pcp-accumulate"
    batch: int = 0

    def run(self, module: ir.Module) -> None:
        """Replace the functions."""
        if self.batch:
            with module.context, module.operation.location:
                for name in ("grad", "eval"):
                    accumulate(module, name, self.batch)


def accumulate(module: ir.Module, name: str, batch: int) -> None:
    """Replace @name by one for `batch` samples; see `Accumulate`."""
    piece = functions.find(module, name)
    if piece is None:
        raise PassError(
            f"the module has no @{name} to accumulate over; run pcp-expand-training "
            "first, with an algorithm that needs gradients"
        )
    inputs, results = functions.argument_ports(piece), _results(piece)
    pieces = _pieces(piece, name, inputs, batch)
    inner = PIECE.format(name)
    piece.attributes["sym_name"] = ir.StringAttr.get(inner)
    piece.attributes["sym_visibility"] = ir.StringAttr.get("private")

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        def step(i: Value, *sums: Value) -> list[Value]:
            parts = [
                _part(x, i, port) if port.role == "data" else x
                for x, port in zip(arguments, inputs, strict=True)
            ]
            found = functions.call(inner, parts, [port.type for port in results])
            return [hlo.add(s, widen(x)) for s, x in zip(sums, found, strict=True)]

        zeros = [widen(hlo.zeros(port.type)) for port in results]
        sums = loops.counted(pieces, zeros, step)
        return [
            (port, hlo.convert(scale(s, 1 / pieces), hlo.element_type(port.type)))
            for port, s in zip(results, sums, strict=True)
        ]

    functions.define(module, name, [_wide(port, batch) for port in inputs], build)


def _results(function: ir.Operation) -> list[Port]:
    types = functions.function_type(function).results
    found = functions.result_attributes(function)
    return [
        Port(
            functions.string(entry, functions.NAME) or "loss",
            functions.string(entry, functions.ROLE) or "loss",
            type_,
        )
        for entry, type_ in zip(found, types, strict=True)
    ]


def _pieces(function: ir.Operation, name: str, inputs: list[Port], batch: int) -> int:
    """How many pieces `batch` has; `PassError` where it cannot be cut so."""
    where = location_string(function.location)
    shapes = [hlo.shape_of(p.type) for p in inputs if p.role == "data"]
    sizes = {shape[0] if shape else 0 for shape in shapes}
    if len(sizes) != 1 or 0 in sizes:
        raise PassError(
            f"{where}: the data of @{name} have no first dimension in common "
            f"({', '.join(map(str, shapes))}), so that a batch cannot be cut"
        )
    (own,) = sizes
    if batch % own:
        raise PassError(
            f"{where}: a batch of {batch} is no multiple of the model's, which is {own}"
        )
    return batch // own


def _wide(port: Port, batch: int) -> Port:
    if port.role != "data":
        return port
    _, *rest = hlo.shape_of(port.type)
    return Port(
        port.name, port.role, hlo.tensor((batch, *rest), hlo.element_type(port.type))
    )


def _part(x: Value, i: Value, port: Port) -> Value:
    """Piece i of the samples."""
    sizes = hlo.shape_of(port.type)
    zero = hlo.zeros(i.type)
    start = hlo.multiply(i, hlo.constant_like(i, sizes[0]))
    return hlo.dynamic_slice(x, [start, *[zero] * (len(sizes) - 1)], sizes)
