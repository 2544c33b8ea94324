"""`--memory 16GiB`: what a device holds in a step is brought below that, or refused.

While a function runs, its device holds the function's arguments, the parameters and the
optimizer's state that are none of them, and what the function makes
(`passes.analysis.memory`). What @grad makes is cut down by pcp-remat, which computes
values of the forward half again; loops of known length are cut by Revolve's like
(pcp-checkpoint-loops) where that is not enough. Of a batch that is gone through in
pieces it is the gradient of a piece that is cut down; of a program over a mesh, each
device's own.
"""

from collections.abc import Iterator

from pcp.compiler import catalog, signature
from pcp.compiler.attributes import dictionary
from pcp.compiler.emission import copy
from pcp.compiler.options import CompileOptions, parse_bytes
from pcp.dialect.bindings import ir
from pcp.errors import DoesNotFit, counted
from pcp.manifest import Function, tensor_bytes
from pcp.passes.analysis.memory import temporary_bytes
from pcp.passes.core import functions
from pcp.passes.core.rewriting import operations
from pcp.passes.core.walk import block_of
from pcp.passes.training.accumulate import PIECE

GRADIENT = signature.GRADIENT
KEPT = ("param", "state")
REPORT = "pcp.remat"

_Port = tuple[str, str]


def remat(module: ir.Module, mode: str, options: CompileOptions) -> str:
    """The pass that has @grad fit in the memory asked for; nothing without one."""
    if options.memory is None or mode == "forward":
        return ""
    room = parse_bytes(options.memory) - beside(module, mode, options)
    return f"pcp-remat{{func={_rerun(module)} budget={max(room, 0)}B}}"


def _rerun(module: ir.Module) -> str:
    """The function of which values are computed again: of one piece, with pieces."""
    piece = PIECE.format(GRADIENT)
    return piece if functions.find(module, piece) is not None else GRADIENT


def beside(module: ir.Module, mode: str, options: CompileOptions) -> int:
    """Bytes that a device holds while @grad runs, besides what it makes.

    Of pieces, besides what one of them makes: sums over pieces are held as well.
    """
    signatures = signature.functions(module, options.entry, mode)
    held = sum((_kept(signatures) | _ports(signatures[GRADIENT].inputs)).values())
    if (piece := _rerun(module)) == GRADIENT:
        return held
    both = (_made(inlined(module), GRADIENT), _made(module, piece))
    return held + max(0, both[0] - both[1])


def _made(module: ir.Module, name: str) -> int:
    """Bytes that a function makes, without those of the functions that it calls."""
    function = functions.find(module, name)
    assert function is not None
    with module.context:
        return temporary_bytes(block_of(function, 0))


def inlined(module: ir.Module) -> ir.Module:
    """The module, or a copy in which no function calls another."""
    if all(op.name != "func.call" for op in operations(module.operation)):
        return module
    flat = copy(module)
    catalog.pipeline("builtin.module(inline)").run(flat)
    return flat


def explained(error: DoesNotFit, held: int, options: CompileOptions) -> DoesNotFit:
    """What pcp-remat found, in terms of what was asked for."""
    least = held + error.least
    return DoesNotFit(
        f"--memory {options.memory}: @{GRADIENT} holds at least {least} bytes, {held} "
        f"of parameters, state and batch, and {error.least} that it makes; give more, "
        "make the batch smaller, or spread the model with --mesh",
        least,
    )


def outcome(module: ir.Module, held: int, options: CompileOptions) -> str:
    """What pcp-remat did for the memory asked for, and the two peaks, in a line."""
    function = functions.find(module, _rerun(module))
    assert function is not None
    found = dictionary(function.attributes[REPORT])
    before, after = held + found["peak_bytes_before"], held + found["peak_bytes"]
    if not found["recomputed_ops"]:
        return f"--memory {options.memory}: @{GRADIENT} holds {after} bytes as it is"
    more = 100 * (found["flops"] / max(1, found["flops_before"]) - 1)
    return (
        f"--memory {options.memory}: @{GRADIENT} holds {after} bytes in place of "
        f"{before}; {counted(found['recomputed_ops'], 'op')} of the forward half run "
        f"again, {more:.0f} % more operations"
    )


def check(module: ir.Module, mode: str, options: CompileOptions) -> None:
    """`DoesNotFit` where another function than @grad holds more than there is."""
    if options.memory is None:
        return
    room = parse_bytes(options.memory)
    for name, need in _needs(module, mode, options):
        if need > room:
            raise DoesNotFit(
                f"--memory {options.memory}: @{name} holds {need} bytes at least; give "
                "more, or spread the model with --mesh",
                need,
            )


def _needs(
    module: ir.Module, mode: str, options: CompileOptions
) -> Iterator[tuple[str, int]]:
    """Bytes held while each function but @grad runs.

    A result takes the memory of the argument of its name, as in @apply.
    """
    signatures = signature.functions(module, options.entry, mode)
    kept, flat = _kept(signatures), inlined(module)
    for name in signature.public_functions(module):
        if name == GRADIENT:
            continue
        inputs, results = (_ports(signatures[name].inputs), signatures[name].results)
        made = _made(flat, name)
        updated = sum(size for port, size in _ports(results).items() if port in inputs)
        held = sum((inputs if name == "init" else kept | inputs).values())
        yield name, held + max(0, made - updated)


def _kept(signatures: dict[str, Function]) -> dict[_Port, int]:
    """The parameters, and of training the optimizer's state."""
    name = "apply" if "apply" in signatures else GRADIENT
    if name not in signatures:
        return {}
    sizes = _ports(signatures[name].inputs)
    return {port: size for port, size in sizes.items() if port[0] in KEPT}


def _ports(specs) -> dict[_Port, int]:
    return {(t.role, t.name): tensor_bytes(t.shape, t.dtype) for t in specs}
