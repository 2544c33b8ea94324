"""pcp-accumulate: a large batch in pieces, inside the program.

The model's own @grad and @eval, for B samples, become private; in their place come
functions for N samples that go through them B at a time, in a loop, and give the mean
of losses and gradients. They say so with `pcp.microbatch`, which becomes a loop: see
`pcp.passes.training.microbatch`. Between pieces nothing leaves the device, and memory
for activations is that of one piece.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import MODEL_STATE
from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import Port
from pcp.passes.training import microbatch

Value = ir.Value
PIECE = "{}.piece"

CUT = ("data", "key")
"""The roles of what each piece has a part of."""


@dataclass(frozen=True)
class Accumulate(Pass):
    """Let @grad and @eval take `batch` samples, in pieces of the model's own batch.

    Assumes the functions of `pcp-expand-training`, whose data have the batch as their
    first dimension, all the same one; `batch` is a multiple of it. A loss that is the
    mean over its batch stays that, as does a metric; one of integers is the sum. State
    goes from piece to piece, and the key becomes one for each piece, a row each. 0
    leaves these functions as they are. Each
    `pcp.microbatch` becomes a loop, those of the program too, unless `expand` is false.

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

    and with expand=false a `pcp.microbatch` in the place of the loop:

          %0 = "pcp.microbatch"(%x) ({
          ^bb0(%part: tensor<2x4xf32>):
            %1:2 = call @grad.piece(%w, %part)
            ...
          }) {count = 4, reduce = ["mean", "mean"]} : (tensor<8x4xf32>) -> ...
    """

    name = "pcp-accumulate"
    batch: int = 0
    expand: bool = True

    def run(self, module: ir.Module) -> None:
        """Replace the functions, and then the ops."""
        with module.context, module.operation.location:
            if self.batch:
                for name in ("grad", "eval"):
                    accumulate(module, name, self.batch)
            if self.expand:
                microbatch.expand_all(module)


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

    carried = [port for port in results if port.role == MODEL_STATE]
    averaged = [port for port in results if port.role != MODEL_STATE]
    cut = [port for port in inputs if port.role in CUT]

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        given = dict(zip(inputs, arguments, strict=True))

        def step(*parts: Value) -> list[Value]:
            mixed = given | dict(zip([*cut, *carried], parts, strict=True))
            mixed |= {p: hlo.reshape(mixed[p], (2,)) for p in cut if p.role == "key"}
            made = functions.call(inner, [*mixed.values()], [p.type for p in results])
            found = dict(zip(results, made, strict=True))
            return [found[port] for port in (*averaged, *carried)]

        data, first = ([given[port] for port in ports] for ports in (cut, carried))
        types = [port.type for port in averaged]
        made = microbatch.write(data, pieces, types, step, first)
        values = dict(zip([*averaged, *carried], made, strict=True))
        return [(port, values[port]) for port in results]

    wide = [_wide(port, batch, pieces) for port in inputs]
    functions.define(module, name, wide, build)


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


def _wide(port: Port, batch: int, pieces: int) -> Port:
    if port.role == "key":
        element = hlo.element_type(port.type)
        return Port(port.name, port.role, hlo.tensor((pieces, 2), element))
    if port.role != "data":
        return port
    _, *rest = hlo.shape_of(port.type)
    return Port(
        port.name, port.role, hlo.tensor((batch, *rest), hlo.element_type(port.type))
    )
