"""What MLIR says about an error, and where: one line, with the file's name."""

import re

from pcp.dialect.bindings import ir

_FRAME = re.compile(r'"[^"]*":\d+:\d+')


def diagnostics(error: ir.MLIRError, source: str) -> str:
    """The first diagnostic of `error` as `file:line:col: message`."""
    for diagnostic in error.error_diagnostics:
        where = location_string(diagnostic.location, source)
        # They are longer than all the rest.
        notes = [n.message for n in diagnostic.notes if not is_echo(n.message)]
        return f"{where}: {'; '.join([diagnostic.message, *notes])}"
    return f"{source}: {error}"


def is_echo(note: str) -> bool:
    """Whether a note prints the op again, or the names of all dialects."""
    return note.startswith(("see current operation", "Available dialects: "))


def location_string(location: ir.Location, source: str = "-") -> str:
    """`file:line:col` of a location; `source` stands in for an unnamed one.

    Of a call stack it is the innermost frame, which MLIR prints first.
    """
    text = str(location).removeprefix("loc(").removesuffix(")")
    if frame := _FRAME.search(text):
        text = frame.group()
    if text == "unknown":
        return source
    text = text.replace('"-"', source).replace('"', "")
    return text.removesuffix(":0:0")  # a module that its file does not write out
