"""The pages of docs that are written from the code: passes, ops, commands and so on.

python -m pcp.tools.pages.docs            write them
python -m pcp.tools.pages.docs --check    fail if they are not what would be written
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from textwrap import indent
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from pcp.compiler.catalog import MLIR_PASSES, PASSES, lookup
from pcp.dialect import attributes, bundles, loading
from pcp.dialect.base import Communicates, Op, Pcp, Writes, is_variadic, kind_words
from pcp.dialect.bindings import ext
from pcp.errors import ConfigError
from pcp.passes.core.base import option
from pcp.tools.pages import monitoring
from pcp.tools.pages.accuracy_page import accuracy_page
from pcp.tools.pages.derivatives_page import derivatives_page
from pcp.tools.pages.markdown import NOTICE, markdown, table
from pcp.tools.pages.places import DOCS
from pcp.tools.pages.reference import (
    api_page,
    commands_page,
    experiment_page,
    metrics_page,
)
from pcp.tools.support.command import Parser, run


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run("pcp.tools.pages.docs", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="pcp.tools.pages.docs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="DIR")
    options = parser.parse_args(argv)
    for name, text in pages().items():
        path = options.out / name
        if options.check and (not path.exists() or path.read_text() != text):
            raise ConfigError(f"{path} is not up to date; run: make docs")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 0


def pages() -> dict[str, str]:
    """File name to text."""
    written = {
        "dialect.md": dialect_page(),
        "passes.md": passes_page(),
        "derivatives.md": derivatives_page(),
        "accuracy.md": accuracy_page(),
        "reference/api.md": api_page(),
        "reference/commands.md": commands_page(),
        "reference/experiment.md": experiment_page(),
        "reference/metrics.md": metrics_page(),
    }
    made = {name: _join(parts) for name, parts in written.items()}
    return made | monitoring.files()


def _join(parts: Iterator[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


# --- the dialect ---


def dialect_page() -> Iterator[str]:
    """Types, attributes, and the ops of each family."""
    yield "# The pcp dialect"
    yield NOTICE
    yield "Ops print and parse in MLIR's generic form."
    yield markdown((bundles.__doc__ or "").partition("\n\n")[2])
    yield "## Types and attributes"
    yield markdown(attributes.__doc__)
    for cls in (*Pcp.types, *Pcp.attributes):
        yield "- " + indent(markdown(cls.__doc__), "  ").strip()
    for family in loading.FAMILIES:
        title = family.__name__.rpartition(".")[2].replace("_", " ")
        yield f"## {title.capitalize()}"
        yield markdown(family.__doc__)
        for op in Pcp.operations:
            if op.__module__ == family.__name__:
                yield from op_section(op)


def op_section(op: type[Op]) -> Iterator[str]:
    """An op: what it means, what it takes, carries and gives."""
    yield f"### {op.OPERATION_NAME}"
    yield markdown(op.__doc__)
    operands, attrs, results, regions = ext.partition_fields(op._fields)
    rows = [("operand", f.name, _count(operands)) for f in operands]
    rows += [("attribute", f.name, kind_words(f.constraint)) for f in attrs]
    rows += [("optional", name, kind_words(kind)) for name, kind in op.optional.items()]
    rows += [("region", f.name, "one block") for f in regions]
    rows += [("result", f.name, _count(results)) for f in results]
    rows += [("effects", "", _effects(op))]
    yield table(("", "name", "what"), rows)


def _count(group: Sequence[Any]) -> str:
    return "any number" if is_variadic(group) else "one"


def _effects(op: type[Op]) -> str:
    if ext.Pure in op._traits:
        return "none: equal ones merge, unused ones go"
    if Communicates in op._traits:
        return "none; with `ordered` a write"
    return (
        "a write: it stays, where it is"
        if Writes in op._traits
        else "unknown: it stays"
    )


# --- the passes ---


def passes_page() -> Iterator[str]:
    """Each pass with its options."""
    yield "# Passes"
    yield NOTICE
    yield (
        "In a pipeline: `builtin.module(pcp-grad{func=main},cse)`. On pcp-opt's "
        "command line: `--pcp-grad=func=main --cse`. MLIR's own passes mix freely."
    )
    for name in sorted(PASSES):
        cls = lookup(name)
        assert cls is not None
        yield f"## {name}"
        yield markdown(cls.__doc__)
        options = fields(cls)
        if options:
            hints = get_type_hints(cls)
            rows = [
                (option(f.name), _type(hints[f.name]), _default(f)) for f in options
            ]
            yield table(("option", "type", "default"), rows)
    yield "## MLIR's and StableHLO's"
    yield "Among others:"
    yield table(("pass", "what"), sorted(MLIR_PASSES.items()))


TYPES = {bool: "true or false", float: "number", int: "integer", str: "text"}


def _type(hint: Any) -> str:
    """What an option's text is read as."""
    if get_origin(hint) is tuple:
        return f"{TYPES.get(get_args(hint)[0], 'value')}s, with commas"
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if not kinds:
        return TYPES.get(hint) or hint.__name__
    return " or ".join(_type(kind) for kind in kinds)


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "computed"
    if field.default is None or field.default in ("", ()):
        return "not set"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f"`{field.default}`"


if __name__ == "__main__":
    sys.exit(main())
