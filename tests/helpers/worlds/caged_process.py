"""A process that runs a module of others as `pcp worker` does; answers are JSON."""

import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing

from pcp.bundle import Bundle
from pcp.runtime.cage import cage
from pcp.runtime.cage.outside import outside
from pcp.runtime.program.executor import Program
from pcp.runtime.transport import link
from pcp.runtime.transport.signatures import Trust
from pcp.signing import BUNDLE
from pcp.tools.commands import cage_flags, worker
from pcp.tools.support.protection import protection, trust


def run_module(path: str, signer: str, device: str, how: str) -> None:
    """Print what the module's @main returns, in a cage or without."""
    bundle = Bundle.read(path)
    Trust(frozenset({signer})).check(BUNDLE, bundle.digest, bundle.signatures, path)
    if how == "caged":
        cage.bar_sockets(cage.enter())
    with Program.load(bundle, device) as program:
        print(json.dumps(program["main"]().tolist()))


def run_keyed(path: str, key: str, device: str) -> None:
    """The same in a worker that has a key file and nothing else."""
    flags = worker.parser().parse_args(["--key-file", key, "--device", device])
    bundle = Bundle.read(path)
    trust(flags, protection(flags)).check(BUNDLE, bundle.digest, (), path)
    cage.bar_sockets(cage_flags.enter(flags))
    with Program.load(bundle, device) as program:
        print(json.dumps(program["main"]().tolist()))


def tried(do: Callable[[], object]) -> str:
    """Which error a call raises; "" for none."""
    try:
        do()
    except OSError as error:
        return type(error).__name__
    return ""


def attempt(secret: str, named: str, new: str) -> None:
    """What Python itself may in a cage that has one file and one folder by name."""
    held = cage.enter(readable=[cage.Path(named)], writable=[cage.Path(new)])
    cage.bar_sockets(held)
    with closing(link.listen("127.0.0.1:0")) as listener:
        port = listener.getsockname()[1]
        dialled = tried(link.dial(f"127.0.0.1:{port}", 5).close)
    found = {
        "a file of others": tried(lambda: open(secret).close()),
        "the file that is named": tried(lambda: open(named).close()),
        "to write to that": tried(lambda: open(named, "a").close()),
        "a new file in the folder": tried(lambda: open(f"{new}/x", "w").close()),
        "a new file elsewhere": tried(lambda: open(f"{secret}.new", "w").close()),
        "another program": tried(lambda: os.execv("/bin/true", ["true"])),
        "another process": tried(os.fork),
        "a signal": tried(lambda: os.kill(os.getppid(), 0)),
        "others' environment": tried(lambda: open(f"/proc/{os.getppid()}/environ")),
        "a socket": tried(lambda: socket.socket().close()),
        "a socket outside": tried(lambda: outside(socket.socket).close()),
        "a connection of the transport": dialled,
    }
    print(json.dumps({"held": str(held), "threads": held.unbound, **found}))


if __name__ == "__main__":
    ways = {"module": run_module, "keyed": run_keyed, "attempt": attempt}
    ways[sys.argv[1]](*sys.argv[2:])
