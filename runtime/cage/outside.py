"""The one thread of a caged process that may make sockets.

Connections are dialled and listened for by functions that others hand to it: their
sockets belong to the process, whichever thread made them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Made = TypeVar("Made")
_jobs: SimpleQueue[Callable[[], None]] | None = None


def start() -> None:
    """Have the thread; called by one that may still make sockets."""
    global _jobs
    if _jobs is None:
        _jobs = SimpleQueue()
        threading.Thread(
            target=_serve, args=(_jobs,), name="pcp-outside", daemon=True
        ).start()


def outside(function: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
    """What the function returns or raises, called where sockets can be made.

    That is here, in a process without a cage.
    """
    if _jobs is None:
        return function(*args, **kwargs)
    answer: Future[Made] = Future()

    def work() -> None:
        try:
            answer.set_result(function(*args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)

    _jobs.put(work)
    return answer.result()


def _serve(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        # One that waits for a peer keeps no other waiting. A thread may what the
        # thread may that starts it.
        threading.Thread(target=jobs.get(), name="pcp-dial", daemon=True).start()
