"""MLIR contexts with StableHLO, CHLO and pcp loaded, and parsing into them."""

from pathlib import Path

from pcp.dialect.bindings import PassManager, ir, stablehlo
from pcp.errors import IRError

_registered = False


def make_context() -> ir.Context:
    """A fresh context that reads StableHLO, CHLO, `func` and `pcp`.

    Multithreading stays off: a module with Python verifiers hangs in a
    multithreaded context (see docs/design/platform.md).
    """
    context = ir.Context()
    stablehlo.register_dialect(context)
    _load_chlo(context)
    from pcp.dialect.loading import load  # the ops need `ir` set up first

    load(context)
    return context


def _load_chlo(context: ir.Context) -> None:
    """CHLO has no loader of its own in the wheel: running one pass loads it."""
    global _registered
    if not _registered:
        stablehlo.register_stablehlo_passes()
        _registered = True
    with context, ir.Location.unknown():
        empty = ir.Module.parse("func.func private @f()")
        pipeline = "builtin.module(func.func(stablehlo-complex-math-expander))"
        PassManager.parse(pipeline).run(empty.operation)


def parse(
    text: str, context: ir.Context | None = None, *, source: str = "-"
) -> ir.Module:
    """Parse MLIR text; `source` names it in the error (`file:line:col: ...`)."""
    context = context or make_context()
    try:
        with context:
            return ir.Module.parse(text)
    except ir.MLIRError as error:
        raise IRError(diagnostics(error, source)) from error


def read(path: str | Path, context: ir.Context | None = None) -> ir.Module:
    """Parse a file of MLIR text or bytecode."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IRError(f"{path}: cannot read the model: {error.strerror}") from error
    if content[:4] == b"ML\xefR":
        context = context or make_context()
        try:
            with context:
                return ir.Module.parse(content)
        except ir.MLIRError as error:
            raise IRError(diagnostics(error, str(path))) from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise IRError(f"{path}: neither MLIR text nor MLIR bytecode") from error
    return parse(text, context, source=str(path))


def diagnostics(error: ir.MLIRError, source: str) -> str:
    """The first diagnostic of `error` as `file:line:col: message`."""
    for diagnostic in error.error_diagnostics:
        where = location_string(diagnostic.location, source)
        notes = "".join(f"; {note.message}" for note in diagnostic.notes)
        return f"{where}: {diagnostic.message}{notes}"
    return f"{source}: {error}"


def location_string(location: ir.Location, source: str = "-") -> str:
    """`file:line:col` of a location; `source` stands in for an unnamed one."""
    text = str(location).removeprefix("loc(").removesuffix(")")
    if text == "unknown":
        return source
    return text.replace('"-"', source).replace('"', "")
