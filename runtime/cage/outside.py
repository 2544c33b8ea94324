"""The thread of a caged process that makes its sockets.

Other threads hand it functions that dial or listen: the sockets belong to the process,
whichever thread made them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Made = TypeVar("Made")
_jobs: SimpleQueue[Callable[[], None]] | None = None


def start() -> None:
    """Start the thread; called by a thread that may still make sockets."""
    global _jobs
    if _jobs is None:
        _jobs = SimpleQueue()
        threading.Thread(
            target=_serve, args=(_jobs,), name="pcp-outside", daemon=True
        ).start()


def outside(function: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
    """Call a function where sockets can be made; its result or its error.

    In a process without a cage that is the calling thread.
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
        # A call that waits for a peer delays no other. A thread has the rights of the
        # thread that starts it.
        threading.Thread(target=jobs.get(), name="pcp-dial", daemon=True).start()
