"""`--memory 16GiB`: what a device holds in a step is brought below that, or refused.

While a function runs, its device holds the function's arguments, the parameters and the
optimizer's state that are none of them, and what the function makes
(`passes.analysis.memory`). What @grad makes is cut down by pcp-remat, which computes
values of the forward half again; loops of known length are cut by Revolve's like
(pcp-checkpoint-loops) where that is not enough.
"""

from collections.abc import Iterator

from pcp.compiler import signature
from pcp.compiler.attributes import dictionary
from pcp.compiler.options import CompileOptions, parse_bytes
from pcp.dialect.bindings import ir
from pcp.errors import DoesNotFit, counted
from pcp.manifest import Function, tensor_bytes
from pcp.passes.analysis.memory import temporary_bytes
from pcp.passes.sharding.flow import block_of

GRADIENT = signature.GRADIENT
KEPT = ("param", "state")
REPORT = "pcp.remat"

_Port = tuple[str, str]


def remat(module: ir.Module, mode: str, options: CompileOptions) -> str:
    """The pass that has @grad fit in the memory asked for; nothing without one."""
    if options.memory is None or mode == "forward":
        return ""
    room = parse_bytes(options.memory) - beside(module, mode, options)
    return f"pcp-remat{{func={GRADIENT} budget={max(room, 0)}B}}"


def beside(module: ir.Module, mode: str, options: CompileOptions) -> int:
    """Bytes that a device holds while @grad runs, besides what it makes."""
    functions = signature.functions(module, options.entry, mode)
    return sum((_kept(functions) | _ports(functions[GRADIENT].inputs)).values())


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
    found = dictionary(signature.public_functions(module)[GRADIENT].attributes[REPORT])
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
    functions = signature.functions(module, options.entry, mode)
    kept = _kept(functions)
    for name, op in signature.public_functions(module).items():
        if name == GRADIENT:
            continue
        inputs, results = (_ports(functions[name].inputs), functions[name].results)
        with module.context:
            made = temporary_bytes(block_of(op, 0))
        updated = sum(size for port, size in _ports(results).items() if port in inputs)
        held = sum((inputs if name == "init" else kept | inputs).values())
        yield name, held + max(0, made - updated)


def _kept(functions: dict[str, Function]) -> dict[_Port, int]:
    """The parameters, and of training the optimizer's state."""
    name = "apply" if "apply" in functions else GRADIENT
    if name not in functions:
        return {}
    sizes = _ports(functions[name].inputs)
    return {port: size for port, size in sizes.items() if port[0] in KEPT}


def _ports(specs) -> dict[_Port, int]:
    return {(t.role, t.name): tensor_bytes(t.shape, t.dtype) for t in specs}
