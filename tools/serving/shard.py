"""`pcp shard`: a model's weights cut for the ranks that will serve it.

DIR is a folder of transformers, with config.json and safetensors. OUT gets a folder for
each rank with its part of the weights, in the types that they have, and the files of
the model that are no weights. A rank needs OUT's files and its own folder. Along tp
heads, the inside of the MLP and the vocabulary are cut; parts may be unequal. Along pp
each stage has layers of its own.

    pcp shard llama/ --mesh tp=2,pp=2 -o shards/
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pcp.errors import UsageError, counted
from pcp.frontends.decoders import families
from pcp.mesh import Mesh
from pcp.serving import shards
from pcp.tools.support.command import Parser, run

PROG = "pcp shard"
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp shard`; returns the exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    add = parser.add_argument
    add("folder", metavar="DIR", help="the model's folder")
    add("--mesh", required=True, metavar="tp=N,pp=N", help="over which ranks")
    add(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="a folder that is empty",
    )
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    # What needs the compiler is imported where it is used: `--help` needs nothing.
    from pcp.tools.serving.decoder_bundle import of_ranks
    from pcp.tools.serving.serving_mesh import parse

    mesh = Mesh("mesh", parse(flags.mesh))
    wanted = of_ranks(families.read(flags.folder), mesh)
    folder, out = Path(flags.folder), Path(flags.out)
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; give a new folder")
    made = shards.write(folder, wanted, mesh, out)
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.endswith(WEIGHTS):
            shutil.copy2(file, out / file.name)
    for file, own in zip(made, wanted, strict=True):
        size = file.stat().st_size
        print(f"{file}: {counted(len(own), 'tensor')}, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    raise SystemExit(main())
