"""`pcp schema`: the JSON Schema of experiment files."""

from collections.abc import Sequence

from pcp.tools.command import Parser, run
from pcp.training.experiment import json_schema

PROG = "pcp schema"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def _main(argv: Sequence[str]) -> None:
    Parser(
        prog=PROG,
        description="Print the JSON Schema of experiment files.",
        example="pcp schema > experiment.schema.json",
    ).parse_args(argv)
    print(json_schema())
