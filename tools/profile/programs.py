"""The program behind a module of a bundle, as IREE was given it."""

from dataclasses import dataclass

from pcp.bundle import Bundle
from pcp.compiler.bundling import lower_device, standalone
from pcp.compiler.emission import TargetText, target_text
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import Target, find
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import ConfigError, nearest


@dataclass(frozen=True)
class Profiled:
    """A module to look at: its bytes, the lowered program, and IREE's text of it."""

    content: bytes
    driver: str
    target: Target
    module: ir.Module
    text: TargetText


def profiled(bundle: Bundle, name: str | None) -> Profiled:
    """A module of a bundle by its name, by default the first; ConfigError."""
    modules = bundle.manifest.modules
    name = name or next(iter(modules))
    if name not in modules:
        raise ConfigError(
            f"no module {name!r}; there are {', '.join(modules)}"
            f"{nearest(name, modules)}"
        )
    row, target = modules[name], find(modules[name].target)
    module = _lowered(bundle, name)
    content, text = bundle.members[row.file], target_text(module, target)
    return Profiled(content, row.driver, target, module, text)


def line(bundle: Bundle, number: int) -> str:
    """The op on a line of `ir/program.mlir`, without its operands; "" for none."""
    lines = bundle.ir("program").splitlines()
    if not 0 < number <= len(lines):
        return ""
    op = lines[number - 1].partition(" = ")[2].split()
    return op[0].strip('"').partition('"')[0] if op else ""


def _lowered(bundle: Bundle, name: str) -> ir.Module:
    """The program of a module. For a device of a mesh, after the device's passes."""
    context = make_context()
    context.allow_unregistered_dialects = True  # IREE's own, after lowering
    with context:
        module = ir.Module.parse(bundle.ir("program"))
    if not bundle.manifest.programs:
        return module
    home = standalone(module, name)
    lower_device(home, bundle.manifest.mode, CompileOptions())
    return home
