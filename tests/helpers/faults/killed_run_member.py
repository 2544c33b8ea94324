"""One member of `pcp run` in its own process, which SIGKILL ends at a chosen moment.

Run with the moment, a count, and what `pcp run` is given. Moments: `launch`, before
the n-th collective is begun; `sent`, after it is, before its answer; `call`, before the
n-th call of one of the bundle's functions.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pcp.runtime.program import collective_imports, executor
from pcp.tools import cli


def _counted(count: int, what: Callable[..., Any], *, after: bool) -> Callable:
    """`what`, whose n-th call this process does not survive."""
    calls = [0]

    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        value = what(*arguments, **options)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    return call


def main() -> int:
    """As the module says."""
    moment, count, *arguments = sys.argv[1:]
    if moment == "call":
        call = _counted(int(count), executor.BoundFunction.__call__, after=False)
        executor.BoundFunction.__call__ = call
    else:
        after = moment == "sent"
        collective_imports.launch = _counted(
            int(count), collective_imports.launch, after=after
        )
    return cli.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
