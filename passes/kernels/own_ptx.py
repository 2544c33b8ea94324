"""Calls of our CUDA kernels as IREE has them: an executable of PTX, and a dispatch.

A kernel takes the addresses of its operands and of its result, then numbers:

    extern "C" __global__ void name(const T0 *in0, ..., float *out, int number0, ...)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels import objects
from pcp.passes.kernels.own_dispatch import dispatched

_BINDING = "#hal.pipeline.binding<storage_buffer"


@dataclass(frozen=True)
class PtxCall:
    """A kernel with its operands' count and its numbers, on a grid of blocks.

    `shared` are bytes of shared memory that a block of `threads` has.
    """

    function: str
    operands: int
    numbers: tuple[int, ...]
    grid: tuple[int, int, int]
    threads: int
    shared: int


class PtxExecutables:
    """The kernels that a module calls, written into it by `write`."""

    def __init__(self) -> None:
        self._calls: dict[str, PtxCall] = {}

    def dispatch(
        self, call: PtxCall, operands: Sequence[ir.Value], result: ir.Type
    ) -> ir.Value:
        """The call's result; at the insertion point."""
        self._calls.setdefault(call.function, call)
        index, i32 = ir.IndexType.get(), ir.IntegerType.get_signless(32)
        grid = [_constant(index, n) for n in call.grid]
        numbers = [_constant(i32, n) for n in call.numbers]
        export = f"@{_executable(call.function)}::@{call.function}"
        (value,) = dispatched(export, grid, [*operands, *numbers], [result])
        return value

    def write(self, module: ir.Module) -> None:
        """Put the executables before everything else in the module."""
        place = ir.InsertionPoint.at_block_begin(module.body)
        with ir.Location.unknown():
            for call in self._calls.values():
                place.insert(ir.Operation.parse(_executable_text(call)))


def _constant(type_: ir.Type, number: int) -> ir.Value:
    value = ir.IntegerAttr.get(type_, number)
    return hlo.op("arith.constant", [], [type_], value=value).result


def _executable(function: str) -> str:
    return f"{function}_ptx"


def _executable_text(call: PtxCall) -> str:
    read = [f"{_BINDING}, ReadOnly>"] * call.operands
    bindings = ", ".join([*read, f"{_BINDING}>"])
    layout = (
        f"#hal.pipeline.layout<constants = {len(call.numbers)}, "
        f"bindings = [{bindings}]>"
    )
    return (
        f'"hal.executable.source"() <{{sym_name = "{_executable(call.function)}", '
        f'sym_visibility = "private", objects = {objects.ptx_attribute(call.function)}'
        "}> ({\n"
        f'"hal.executable.export"() <{{sym_name = "{call.function}", '
        f'sym_visibility = "public", ordinal = 0 : index, layout = {layout}, '
        f"workgroup_size = [{call.threads} : index, 1 : index, 1 : index], "
        f"workgroup_local_memory = {call.shared} : index}}> ({{\n"
        "^bb0(%device: !hal.device, %x: index, %y: index, %z: index):\n"
        '"hal.return"(%x, %y, %z) : (index, index, index) -> ()\n'
        "}, {}) : () -> ()\n"
        '"hal.executable.source_end"() : () -> ()\n'
        "}) : () -> ()"
    )
