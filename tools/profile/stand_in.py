"""A module that answers a program's imports at once, so that one process can run it.

An import whose result has the type of its operand gives the operand back; another one
gives memory of the right size. The numbers are wrong, and a kernel's time does not
depend on them.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import iree.runtime as rt

from pcp.compiler import iree
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.passes.collectives.imports import PREFIX

_HAL = """\
vm.module public @pcp_rt {
  vm.import private @hal.fence.await(%timeout : i32, %flags : i64,
    %fences : !vm.ref<!hal.fence> ...) -> i32 attributes {vm.yield}
  vm.import private @hal.fence.signal(%fence : !vm.ref<!hal.fence>)
  vm.import private @hal.devices.get(%index : i32) -> !vm.ref<!hal.device>
  vm.import private @hal.device.allocator(%device : !vm.ref<!hal.device>)
    -> !vm.ref<!hal.allocator>
  vm.import private @hal.allocator.allocate(%allocator : !vm.ref<!hal.allocator>,
    %affinity : i64, %types : i32, %usage : i32, %size : i64)
    -> !vm.ref<!hal.buffer>
  vm.import private @hal.buffer_view.create(%buffer : !vm.ref<!hal.buffer>,
    %offset : i64, %length : i64, %element : i32, %encoding : i32, %shape : i64 ...)
    -> !vm.ref<!hal.buffer_view>
"""
_VIEW, _FENCE = "!vm.ref<!hal.buffer_view>", "!vm.ref<!hal.fence>"
_MEMORY, _USAGE = int(rt.MemoryType.DEVICE_LOCAL), int(rt.BufferUsage.DEFAULT)
_DENSE_ROW_MAJOR = 1
_ELEMENT: dict[str, Any] = {
    "i1": rt.HalElementType.BOOL_8,
    "i8": rt.HalElementType.INT_8,
    "i16": rt.HalElementType.INT_16,
    "i32": rt.HalElementType.INT_32,
    "i64": rt.HalElementType.INT_64,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f16": rt.HalElementType.FLOAT_16,
    "f32": rt.HalElementType.FLOAT_32,
    "f64": rt.HalElementType.FLOAT_64,
    "complex<f32>": rt.HalElementType.COMPLEX_64,
    "complex<f64>": rt.HalElementType.COMPLEX_128,
}


def stand_in(module: ir.Module) -> bytes | None:
    """The compiled module for the imports of a lowered program; None without any."""
    found = list(_imports(module))
    if not found:
        return None
    text = _HAL + "".join(_function(*one) for one in found) + "}\n"
    return iree.compile_text(
        text,
        ("--compile-from=vm",),
        timeout=CompileOptions().timeout,
        running=iree.Running(),
    )


def _imports(module: ir.Module) -> Iterator[tuple[str, ir.FunctionType]]:
    for op in module.body.operations:
        if op.operation.name == "util.func":
            name = ir.StringAttr(op.attributes["sym_name"]).value
            kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
            if name.startswith(PREFIX):
                yield name.removeprefix(PREFIX), kind


def _function(name: str, kind: ir.FunctionType) -> str:
    views = "".join(f"%in{i}: {_VIEW}, " for i in range(len(kind.inputs)))
    body, results = "", []
    for place, result in enumerate(kind.results):
        if place < len(kind.inputs) and kind.inputs[place] == result:
            results.append(f"%in{place}")
        else:
            body += _allocated(f"%out{place}", ir.RankedTensorType(result))
            results.append(f"%out{place}")
    types = ", ".join([_VIEW] * len(results))
    return f"""\
  vm.func private @{name}({views}%wait: {_FENCE}, %signal: {_FENCE}) -> ({types}) {{
    %never = vm.const.i32 -1
    %none = vm.const.i64 0
    %ok = vm.call.variadic @hal.fence.await(%never, %none, [%wait])
      : (i32, i64, {_FENCE} ...) -> i32
{body}    vm.call @hal.fence.signal(%signal) : ({_FENCE}) -> ()
    vm.return {", ".join(results)} : {types}
  }}
  vm.export @{name}
"""


def _allocated(name: str, tensor: ir.RankedTensorType) -> str:
    """A new buffer view of a tensor's type, under a name."""
    element = _ELEMENT[str(tensor.element_type)].value
    n = name.removeprefix("%")
    count = max(1, prod(tensor.shape))
    size = count * max(8, element & 0xFF) // 8
    sizes = [f"%{n}_{i}" for i in range(tensor.rank)]
    lines = [
        f"%{n}_index = vm.const.i32 0",
        f"%{n}_device = vm.call @hal.devices.get(%{n}_index)"
        " : (i32) -> !vm.ref<!hal.device>",
        f"%{n}_allocator = vm.call @hal.device.allocator(%{n}_device)"
        " : (!vm.ref<!hal.device>) -> !vm.ref<!hal.allocator>",
        f"%{n}_any = vm.const.i64 -1",
        f"%{n}_types = vm.const.i32 {_MEMORY}",
        f"%{n}_usage = vm.const.i32 {_USAGE}",
        f"%{n}_size = vm.const.i64 {size}",
        f"%{n}_buffer = vm.call @hal.allocator.allocate(%{n}_allocator, %{n}_any,"
        f" %{n}_types, %{n}_usage, %{n}_size) : (!vm.ref<!hal.allocator>, i64, i32,"
        " i32, i64) -> !vm.ref<!hal.buffer>",
        f"%{n}_element = vm.const.i32 {element}",
        f"%{n}_encoding = vm.const.i32 {_DENSE_ROW_MAJOR}",
        f"%{n}_offset = vm.const.i64 0",
        *(f"{s} = vm.const.i64 {d}" for s, d in zip(sizes, tensor.shape, strict=True)),
        f"{name} = vm.call.variadic @hal.buffer_view.create(%{n}_buffer, %{n}_offset,"
        f" %{n}_size, %{n}_element, %{n}_encoding, [{', '.join(sizes)}])"
        f" : (!vm.ref<!hal.buffer>, i64, i64, i32, i32, i64 ...) -> {_VIEW}",
    ]
    return "".join(f"    {line}\n" for line in lines)
