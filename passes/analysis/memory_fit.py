"""Whether each device can hold what its program's functions take and give."""

from collections.abc import Callable

from pcp.dialect.bindings import ir
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.core.functions import function_type, symbol_name
from pcp.passes.core.rewriting import device_modules
from pcp.passes.sharding.mesh import DEVICE

Fail = Callable[[ir.Operation, str], None]


def check_memory(module: ir.Module, fail: Fail) -> None:
    """Call `fail` at the first function that a device cannot hold.

    What a call takes is held at once, and so is what it gives, whatever else it needs.
    """
    for name, home in device_modules(module).items():
        if (room := _memory(home)) is None:
            continue
        for inner in home.regions[0].blocks[0].operations:
            function = inner.operation
            if function.name == "func.func":
                _check_fits(function, name, room, fail)


def _memory(home: ir.Operation) -> int | None:
    """Bytes of the device that a module is for, if somebody says."""
    if DEVICE not in home.attributes:
        return None
    facts = ir.DictAttr(home.attributes[DEVICE])
    return ir.IntegerAttr(facts["memory"]).value if "memory" in facts else None


def _check_fits(function: ir.Operation, device: str, room: int, fail: Fail) -> None:
    type_ = function_type(function)
    for what, types in (("arguments", type_.inputs), ("results", type_.results)):
        need = sum(map(size_bytes, types))
        if need > room:
            fail(
                function,
                f"does not fit on @{device}: the {what} of @"
                f"{symbol_name(function)} need {need:,} bytes, and it has "
                f"{room:,}; cut more of them (--zero, --sharding, a larger mesh), or "
                "use a device with more memory",
            )
