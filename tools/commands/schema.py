"""`pcp schema [cluster]`: the JSON Schema of experiment files, or of cluster files."""

from collections.abc import Sequence

from pcp.tools.support.command import Parser, run
from pcp.training.config.experiment_file import (
    json_schema,
)

PROG = "pcp schema"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Print the JSON Schema of experiment files, or of cluster files.",
        example="pcp schema > experiment.schema.json",
    )
    kinds = ("experiment", "cluster")
    parser.add_argument("kind", nargs="?", choices=kinds, default=kinds[0])
    return parser


def _main(argv: Sequence[str]) -> None:
    if parser().parse_args(argv).kind == "cluster":
        from pcp.compiler.cluster import json_schema as cluster_schema

        print(cluster_schema())
    else:
        print(json_schema())
