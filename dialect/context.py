"""MLIR contexts with StableHLO, CHLO and pcp loaded, and parsing into them."""

from pathlib import Path

from pcp.dialect.bindings import PassManager, ir, stablehlo
from pcp.dialect.diagnostics import diagnostics
from pcp.dialect.shardy import manual, sdy
from pcp.errors import IRError

#: Dialects on tensors whose ops a program may hold beside StableHLO's.
UPSTREAM = ("arith", "linalg", "math", "tensor")

# Those that we, and passes, build ops of. Others are loaded where a text has them:
# there are thirty, which takes longer than all the rest.
_BUILT = ["func", "irdl", *UPSTREAM]

_registered = False


def make_context() -> ir.Context:
    """A fresh context that reads StableHLO, CHLO, `func` and `pcp`.

    Multithreading stays off: a module with Python verifiers hangs in a
    multithreaded context.
    """
    context = ir.Context(load_on_create_dialects=[])
    for name in _BUILT:
        # Loads it. `load_on_create_dialects` also imports Python's classes of its ops:
        # those of linalg take a fifth of a second, and few programs have one.
        context.get_dialect_descriptor(name)
    stablehlo.register_dialect(context)
    _load_chlo(context)
    from pcp.dialect.loading import load  # the ops need `ir` set up first

    load(context)
    return context


def _load_chlo(context: ir.Context) -> None:
    """CHLO has no loader of its own in the wheel: running one pass loads it."""
    register_passes()
    with context, ir.Location.unknown():
        empty = ir.Module.parse("func.func private @f()")
        pipeline = "builtin.module(func.func(stablehlo-complex-math-expander))"
        PassManager.parse(pipeline).run(empty.operation)


def register_passes() -> None:
    """Make StableHLO's passes known by name; they are global to the process."""
    global _registered
    if not _registered:
        stablehlo.register_stablehlo_passes()
        _registered = True


def parse(
    text: str, context: ir.Context | None = None, *, source: str = "-"
) -> ir.Module:
    """Parse MLIR text; `source` names it in the error (`file:line:col: ...`).

    Shardings of JAX's, in generic form, are read as pcp's: see `dialect.shardy.sdy`.
    """
    if sdy.is_in(text):
        return _parse_sharded(text, context or make_context(), source)
    try:
        with context or make_context():
            return ir.Module.parse(text)
    except ir.MLIRError as error:
        raise _unread(error, source) from error


def _unread(error: ir.MLIRError, source: str) -> IRError:
    """What MLIR says of a text, and the way to read ops of other dialects."""
    found = diagnostics(error, source)
    hint = "; --load FILE.py, or pcp.load_extension, brings a dialect of your own"
    return IRError(found + (hint if "unregistered dialect" in found else ""))


def _parse_sharded(text: str, context: ir.Context, source: str) -> ir.Module:
    """Parse text with ops of a dialect that the wheel has not, and replace these."""
    before = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = True
    try:
        with context:
            module = ir.Module.parse(manual.hide_calls(text))
        sdy.convert(module, source)
    except ir.MLIRError as error:
        found = diagnostics(error, source)
        hint = f"; {sdy.GENERIC}" if "sdy" in found else ""
        raise IRError(found + hint) from error
    finally:
        context.allow_unregistered_dialects = before
    return module


def read(path: str | Path, context: ir.Context | None = None) -> ir.Module:
    """Parse a file of MLIR text or bytecode."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IRError(f"{path}: cannot read the model: {error.strerror}") from error
    return parse_bytes(content, context, source=str(path))


def parse_bytes(
    content: bytes, context: ir.Context | None = None, *, source: str = "-"
) -> ir.Module:
    """Parse the content of a file: MLIR bytecode, or text in UTF-8."""
    if is_bytecode(content):
        try:
            with context or make_context():
                return ir.Module.parse(content)
        except ir.MLIRError as error:
            raise _unread(error, source) from error
    return parse(decode(content, source), context, source=source)


def is_bytecode(content: bytes) -> bool:
    """Whether it starts as MLIR bytecode does."""
    return content[:4] == b"ML\xefR"


def decode(content: bytes, source: str) -> str:
    """MLIR text from a file's bytes; an `IRError` when there is none."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise IRError(
            f"{source}:{line}: neither MLIR text nor MLIR bytecode "
            f"(byte {error.start} is not UTF-8)"
        ) from error
    if not text.strip():
        raise IRError(f"{source}: empty input, there is no program to read")
    return text
