"""What the dispatches of a program compute and move: IREE's own cut of it.

iree-compile is stopped where it has cut the program into dispatches (`flow`). There a
dispatch is a function; its name is that of the kernel in the compiled module.
"""

import re
from collections.abc import Iterator
from math import prod
from typing import Any

import iree.compiler.dialects.linalg
import iree.compiler.ir

from pcp.compiler.emission import TargetText
from pcp.compiler.iree import Running, compile_text
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import Target
from pcp.tools.profile.figures import Dispatch

# IREE's bindings have no types; they are not those of `pcp.dialect.bindings`.
ir: Any = iree.compiler.ir
linalg: Any = iree.compiler.dialects.linalg
_FLOW = ("--compile-to=flow", "--mlir-print-debuginfo")
_FLOAT = re.compile(r"arith\.\w*f|math\.\w+")
_CASTS = {"arith.extf", "arith.truncf", "arith.cmpf", "arith.bitcast"}
_BINDING = re.compile(r"<(readonly|writeonly|readwrite):(tensor<.*>)>")
_LINE = re.compile(r'"-":(\d+):')


def dispatches(text: TargetText, target: Target) -> dict[str, Dispatch]:
    """The dispatches of a program, as `target_text` gives it, by name."""
    level = f"--iree-opt-level={CompileOptions().opt_levels[0]}"
    flags = (level, *target.all_flags, *_FLOW)
    timeout = CompileOptions().timeout
    flow = compile_text(text.located, flags, timeout=timeout, running=Running())
    with ir.Context():
        module = ir.Module.parse(flow.decode())
        return {name: _measured(body) for name, body in _functions(module)}


def _functions(module: Any) -> Iterator[tuple[str, Any]]:
    """The functions of all executables, by name."""
    for executable in module.body.operations:
        if executable.operation.name != "flow.executable":
            continue
        for inner in executable.operation.regions[0].blocks[0].operations:
            if inner.operation.name == "builtin.module":
                for function in inner.operation.regions[0].blocks[0].operations:
                    name = ir.StringAttr(function.operation.attributes["sym_name"])
                    yield name.value, function.operation


def _measured(function: Any) -> Dispatch:
    loops: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name.startswith("linalg.") and len(op.regions):
            loops.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    arguments = function.regions[0].blocks[0].arguments
    lines = [found for op in loops if (found := _LINE.search(str(op.location)))]
    return Dispatch(
        flops=sum(map(_flops, loops)),
        bytes=sum(_bytes(str(argument.type)) for argument in arguments),
        line=int(lines[-1].group(1)) if lines else 0,
    )


def _flops(loop: Any) -> int:
    """Float operations of a linalg op: those of its body, once for each point."""
    body = loop.regions[0].blocks[0].operations
    names = [op.operation.name for op in body]
    floats = sum(1 for n in names if n not in _CASTS and _FLOAT.fullmatch(n))
    return floats * prod(_domain(loop).values()) if floats else 0


def _domain(loop: Any) -> dict[int, int]:
    """The size of each of the loop's dimensions."""
    sizes: dict[int, int] = {}
    maps = linalg.get_indexing_maps(loop)
    for value, attribute in zip(loop.operands, maps, strict=False):
        shape = getattr(value.type, "shape", ())
        results = ir.AffineMapAttr(attribute).value.results
        for size, expression in zip(shape, results, strict=False):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return sizes


def _bytes(binding: str) -> int:
    """The bytes that a dispatch's binding moves; 0 for a number."""
    found = _BINDING.search(binding)
    if found is None:
        return 0
    tensor = ir.RankedTensorType(ir.Type.parse(found.group(2)))
    size = prod(tensor.shape) * _width(tensor.element_type)
    return 2 * size if found.group(1) == "readwrite" else size


def _width(element: Any) -> int:
    if isinstance(element, ir.ComplexType):
        return 2 * _width(element.element_type)
    return max(1, element.width // 8)
