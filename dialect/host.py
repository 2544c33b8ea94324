"""Host functions: declared in a program, and bound by the process that runs it.

    func.func private @scale(tensor<4xf32>) -> tensor<4xf32> attributes {pcp.host}

A `func.call` of such a declaration hands its tensors to the host, which computes on
them as it likes and gives back what the declaration says. Calls have effects: each is
made once, in the program's order.
"""

from pcp.dialect.bindings import ir
from pcp.dialect.inlining import CALL, functions_of

HOST = "pcp.host"


def is_host(function: ir.Operation) -> bool:
    """Whether a `func.func` says that the host has it."""
    return HOST in function.attributes


def host_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The declared host functions of a module, by name."""
    found = functions_of(module)
    return {name: function for name, function in found.items() if is_host(function)}


def problem(function: ir.Operation) -> str | None:
    """What is wrong with a host function's declaration; None where nothing is."""
    if len(function.regions[0].blocks):
        return f"it has a body, and {HOST}: the host has the body; leave one out"
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for value in (*type_.inputs, *type_.results):
        fits = isinstance(value, ir.RankedTensorType) and value.has_static_shape
        if not fits:
            return f"{value} cannot go to the host; write tensors of known shapes"
    return None


def callee(call: ir.Operation) -> str:
    """The name of what a `func.call` calls."""
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def is_host_call(op: ir.Operation, known: dict[str, ir.Operation]) -> bool:
    """Whether an op calls one of these host functions."""
    return op.name == CALL and callee(op) in known
