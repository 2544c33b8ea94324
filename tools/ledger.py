"""`pcp ledger check RUN`: prove that no sample was used twice and none lost."""

from collections.abc import Sequence
from pathlib import Path

from pcp.errors import ConfigError
from pcp.tools.command import Parser, run
from pcp.training.ledger import FILE_NAME, check

PROG = "pcp ledger"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Check a run's ledger: each sample of each epoch was used at "
        "most once, and none was lost.",
        example="pcp ledger check runs/run_20261121-031500",
    )
    parser.add_argument("action", choices=("check",))
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its ledger")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    path = Path(flags.run)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise ConfigError(f"{path}: no ledger there")
    for line in check(path).lines():
        print(line)
    print("ledger ok")
