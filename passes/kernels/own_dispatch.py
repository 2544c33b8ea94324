"""Calls of compiled kernels as IREE has them: an executable with an object, a dispatch.

The executable's functions do nothing but hand the addresses of tensors to C:

    void name(const T0 *in0, size_t offset0, ..., float *out, size_t offset,
              size_t workgroup, size_t number0, ...)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels import objects


@dataclass(frozen=True)
class KernelCall:
    """A function of a source with its tensors and numbers.

    `types` are MLIR's of the operands and of the results, which come last;
    `workgroups` run at once, each with its number.
    """

    source: str
    function: str
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    numbers: tuple[int, ...]
    workgroups: int

    @property
    def export(self) -> str:
        """A name for its export, the same for the same call alone."""
        numbers = "_".join(map(str, (*self.numbers, self.workgroups)))
        return f"{self.function}_{numbers}"


def dispatched(
    export: str,
    grid: Sequence[ir.Value],
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
) -> list[ir.Value]:
    """The results of an executable's export, on a grid if it takes one."""
    segments = [len(grid), len(operands), 0, 0]
    op = hlo.op(
        "flow.dispatch",
        [*grid, *operands],
        results,
        entry_points=ir.ArrayAttr.get([ir.Attribute.parse(export)]),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get(segments),
        tied_operands=ir.Attribute.parse(
            f"[{', '.join(['-1 : index'] * len(results))}]"
        ),
    )
    return list(op.results)


class Executables:
    """The calls of a module, written into it by `write`."""

    def __init__(self, instructions: str) -> None:
        self._instructions = instructions
        self._calls: dict[str, dict[str, KernelCall]] = {}

    def dispatch(
        self,
        call: KernelCall,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
    ) -> list[ir.Value]:
        """The call's results; at the insertion point."""
        self._calls.setdefault(call.source, {})[call.export] = call
        export = f"@{_executable(call.source)}::@{call.export}"
        return dispatched(export, [], operands, results)

    def write(self, module: ir.Module) -> None:
        """Put the executables before everything else in the module."""
        place = ir.InsertionPoint.at_block_begin(module.body)
        with ir.Location.unknown():
            for source, calls in self._calls.items():
                chosen = objects.best(source, self._instructions)
                assert chosen is not None  # what has no object has no entry
                held = objects.attribute(source, chosen)
                text = _executable_text(_executable(source), list(calls.values()), held)
                place.insert(ir.Operation.parse(text))


def _executable(source: str) -> str:
    return f"pcp_kernels_{source}"


def _executable_text(name: str, calls: Sequence[KernelCall], held: str) -> str:
    exports = "".join(map(_export_text, calls))
    declared = {call.function: _declaration_text(call) for call in calls}
    functions = "".join([*declared.values(), *map(_function_text, calls)])
    return (
        '"stream.executable"() '
        f'<{{sym_name = "{name}", sym_visibility = "private"}}> ({{\n'
        f'{exports}"builtin.module"() ({{\n{functions}}}) : () -> ()\n'
        '"stream.executable.end"() : () -> ()\n'
        f"}}) {{hal.executable.objects = {held}}} : () -> ()"
    )


def _export_text(call: KernelCall) -> str:
    return (
        '"stream.executable.export"() '
        f'<{{function_ref = @{call.export}, sym_name = "{call.export}", '
        'sym_visibility = "public"}> ({\n'
        f'%n = "arith.constant"() <{{value = {call.workgroups} : index}}> '
        ": () -> index\n"
        '%one = "arith.constant"() <{value = 1 : index}> : () -> index\n'
        '"stream.return"(%n, %one, %one) : (index, index, index) -> ()\n'
        "}) : () -> ()\n"
    )


def _border(call: KernelCall) -> str:
    tensors = [f"memref<{t}>, index" for t in call.types]
    return f"({', '.join([*tensors, 'index', *['index'] * len(call.numbers)])}) -> ()"


def _declaration_text(call: KernelCall) -> str:
    return (
        f'"func.func"() <{{function_type = {_border(call)}, '
        f'sym_name = "{call.function}", sym_visibility = "private"}}> ({{}}) '
        "{hal.import.static, llvm.bareptr = [true]} : () -> ()\n"
    )


def _function_text(call: KernelCall) -> str:
    count = len(call.types)
    bindings = ", ".join(["!stream.binding"] * count)
    arguments = ", ".join(f"%b{i}: !stream.binding" for i in range(count))
    lines = [
        f'"func.func"() <{{function_type = ({bindings}) -> (), '
        f'sym_name = "{call.export}"}}> ({{',
        f"^bb0({arguments}):",
        '%zero = "arith.constant"() <{value = 0 : index}> : () -> index',
        '%part = "stream.dispatch.workgroup.id"() <{dimension = 0 : index}> '
        ": () -> index",
    ]
    passed = []
    for i, (type_, size) in enumerate(zip(call.types, call.sizes, strict=True)):
        # Of a type with no offset of its own IREE forgets the packed buffer's.
        flat = f"memref<{size}x{type_}, strided<[1], offset: ?>>"
        lines += [
            f'%m{i} = "stream.binding.subspan"(%b{i}, %zero) '
            f": (!stream.binding, index) -> {flat}",
            f'%s{i}:4 = "memref.extract_strided_metadata"(%m{i}) '
            f": ({flat}) -> (memref<{type_}>, index, index, index)",
        ]
        passed += [f"%s{i}#0", f"%s{i}#1"]
    passed.append("%part")
    for i, number in enumerate(call.numbers):
        lines.append(
            f'%n{i} = "arith.constant"() <{{value = {number} : index}}> : () -> index'
        )
        passed.append(f"%n{i}")
    lines += [
        f'"func.call"({", ".join(passed)}) <{{callee = @{call.function}}}> '
        f": {_border(call)}",
        '"func.return"() : () -> ()',
        "}) : () -> ()\n",
    ]
    return "\n".join(lines)
