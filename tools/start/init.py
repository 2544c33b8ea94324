"""`pcp init`: a folder with an experiment and its model, which `pcp train` takes."""

from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from pcp.errors import ConfigError, install
from pcp.tools.support.command import Parser, run

PROG = "pcp init"
FILES = {"demo.json": "demo.json", "models/nanogpt_small.mlir": "nanogpt_small.mlir"}
"""What is written, and the file of this package that it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Write an experiment and a small GPT, ready to be trained. Its "
        "data is the documentation of Python, which every Python brings.",
        example="pcp init demo && pcp train demo/demo.json --workers 2",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR")
    return parser


def _main(argv: Sequence[str]) -> None:
    folder = Path(parser().parse_args(argv).folder)
    wanted = {folder / name: source for name, source in FILES.items()}
    if there := [str(path) for path in wanted if path.exists()]:
        raise ConfigError(
            f"{there[0]} is there already, and pcp init writes over no file; name "
            "another folder"
        )
    for path, source in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files(__package__ or "").joinpath(source).read_bytes())
        print(f"wrote {path}")
    if find_spec("torch_mlir") is None:
        print(f"first: {install('train')}")
    print(f"next:  pcp train {folder / 'demo.json'} --workers 2")
