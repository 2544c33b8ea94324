"""Compiled modules and bundles that are kept, so that the same model compiles once.

pcp cache ls
pcp cache prune --keep 1GiB
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pcp.compiler.cache import KINDS, Cache
from pcp.compiler.options import parse_bytes
from pcp.errors import UsageError, counted
from pcp.tools.support.cache_folder import VARIABLE, cache_folder
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say

PROG = "pcp cache"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    add = parser.add_argument
    add("action", choices=("ls", "prune"))
    add("--cache", metavar="DIR", help=f"default: ${VARIABLE}, or the user's")
    add("--keep", metavar="SIZE", default="0B", help="prune: as 1GiB; default: nothing")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    folder = cache_folder(flags.cache)
    if folder is None:
        raise UsageError(f"the cache is off; name a folder with --cache or ${VARIABLE}")
    cache = replace(Cache(folder), max_bytes=parse_bytes(flags.keep, "--keep"))
    before = cache.entries()
    if flags.action == "ls":
        for at, size, path in before:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(at / 1e9))
            say(f"{used}  {size:>12,}  {KINDS[path.suffix]}  {path.stem[:16]}")
        total = sum(size for _, size, _ in before)
        say(f"{_counted(before)}, {total:,} bytes in {folder}")
        return
    gone = cache.prune()
    say(f"removed {len(gone)} of {_counted(before)} in {folder}")


def _counted(entries: Sequence[tuple[int, int, Path]]) -> str:
    """`2 modules, 1 bundle`."""
    found = [path.suffix for _, _, path in entries]
    numbers = [(found.count(kind), name) for kind, name in KINDS.items()]
    return ", ".join(counted(n, name) for n, name in numbers)
