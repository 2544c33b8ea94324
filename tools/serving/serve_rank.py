"""`pcp serve-rank`: one rank of a model that is served over several.

`pcp serve DIR --ranks 2` starts its ranks itself. To have them on machines of their
own, start this on each, with the same bundle and the same weights: the model's folder,
or the parts that `pcp shard` made of it. Rank 0 is the server.

    pcp serve-rank model.pcp DIR --rank 1 --connect 10.0.0.1:29600
"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from pcp.bundle import Bundle
from pcp.errors import UsageError
from pcp.serving.member import PATIENCE, Member, follow
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import stamped

PROG = "pcp serve-rank"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp serve-rank`; returns the exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    add = parser.add_argument
    add("bundle", metavar="BUNDLE.pcp")
    add("folder", metavar="DIR", help="the model's folder, or one of pcp shard")
    add("--rank", type=int, required=True, metavar="R", help="1 or more")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--connect", metavar="HOST:PORT", help="where rank 0 listens")
    help_ = "load it, and be the rank that a line of stdin says: RANK HOST:PORT"
    where.add_argument("--spare", action="store_true", help=help_)
    add("--slots", type=int, default=4, metavar="N", help="as rank 0 has; default 4")
    add("--device", default="local-task", help="an IREE device; default local-task")
    help_ = f"seconds without a rank 0 after which it ends; default {PATIENCE:.0f}"
    add("--patience", type=float, default=PATIENCE, help=help_)
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    bundle = Bundle.read(flags.bundle)
    _check(bundle, flags.rank)
    _serve(bundle, flags)


def _check(bundle: Bundle, rank: int) -> None:
    size = bundle.manifest.partition_mesh().size
    if not 0 < rank < size:
        raise UsageError(
            f"--rank {rank}: the bundle is for {size} ranks; rank 0 is the "
            f"server, and these are 1 to {size - 1}"
        )


def _serve(bundle: Bundle, flags: Namespace) -> None:
    member, address = _member(bundle, flags, flags.rank), flags.connect
    try:
        if flags.spare:
            print("loaded", flush=True)
            if (told := _told()) is None:
                return
            rank, address = told
            if rank != member.rank:
                _check(bundle, rank)
                member.close()
                member = _member(bundle, flags, rank)
        log = stamped(f"serve-rank {member.rank}", sys.stderr)
        follow(member, address, log, patience=flags.patience)
    finally:
        member.close()


def _member(bundle: Bundle, flags: Namespace, rank: int) -> Member:
    return Member(bundle, flags.folder, rank, slots=flags.slots, device=flags.device)


def _told() -> tuple[int, str] | None:
    """Rank and address of the line that comes; None behind the end of them."""
    line = sys.stdin.readline()
    if not line:
        return None
    rank, _, address = line.strip().partition(" ")
    if not rank.isdecimal() or not address:
        raise UsageError(f"a line {line!r}, where RANK HOST:PORT is expected")
    return int(rank), address


if __name__ == "__main__":
    raise SystemExit(main())
