"""`--host-function [NAME=]FILE.py:FUNCTION`: what a program's host functions are."""

from argparse import Namespace
from typing import Any

from pcp.bundle import Manifest
from pcp.errors import UsageError
from pcp.tools.support.command import Parser
from pcp.tools.support.user_files import load_file, named

FLAG = "--host-function"


def add_host_functions(parser: Parser) -> None:
    """Add the flag."""
    parser.add_argument(
        FLAG,
        action="append",
        default=[],
        metavar="[NAME=]FILE.py:FUNCTION",
        help="what the program calls as @NAME, by default @FUNCTION (repeatable)",
    )


def read(flags: Namespace, manifest: Manifest) -> dict[str, Any]:
    """The functions by name; what the processes here call must be there.

    These are all of the bundle's, or with `--rank` that of one device.
    """
    from pcp.runtime.program import host_functions

    bound: dict[str, Any] = {}
    for text in flags.host_function:
        name, _, place = text.rpartition("=")
        path, _, function = place.rpartition(":")
        if not path or not function:
            raise UsageError(f"{FLAG} {text}: write [NAME=]FILE.py:FUNCTION")
        if (name or function) in bound:
            raise UsageError(f"{FLAG} {text}: @{name or function} is bound already")
        bound[name or function] = named(load_file(path), path, function)
    called = host_functions.declared(manifest.all_collectives())
    host_functions.check_called(called, bound)
    if flags.rank is not None and manifest.programs:
        devices = manifest.worker_mesh().devices
        own = manifest.of_device(devices[flags.rank % len(devices)])
        called = host_functions.declared(own.collectives.values())
    host_functions.check_bound(called, bound)
    return bound
