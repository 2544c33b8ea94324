"""Ranks of a world in processes forked from one that has imported torch for all.

Run with the module of `helpers.worlds` whose `main` is a rank's, and their number: a
rank has RANK and WORLD_SIZE, and what it says comes behind its number. Importing torch
and what DDP needs takes three seconds of processor, a rank's own work one.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module

import torch._dynamo  # noqa: F401 - what DDP and DTensor import when they are first used

from pcp.training.process.parent_death import die_with_parent, with_parent


def main(module: str, size: int) -> int:
    """Start the ranks, pass on what they say, and give the first bad exit code."""
    run = import_module(f"helpers.worlds.{module}").main
    ranks = [_start(run, rank, size) for rank in range(size)]
    readers = [
        threading.Thread(target=_pass_on, args=(rank, pipe))
        for rank, (_, pipe) in enumerate(ranks)
    ]
    for reader in readers:
        reader.start()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in ranks]
    for reader in readers:
        reader.join()
    return next(filter(None, codes), 0)


def _start(run: Callable[[], None], rank: int, size: int) -> tuple[int, int]:
    """The process of a rank, and where its output comes."""
    receiving, sending = os.pipe()
    os.environ |= with_parent({})
    if pid := os.fork():
        os.close(sending)
        return pid, receiving
    die_with_parent()
    os.dup2(sending, 1)
    os.dup2(sending, 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    code = 1
    try:
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pass_on(rank: int, pipe: int) -> None:
    with os.fdopen(pipe, errors="replace") as lines:
        for line in lines:
            print(f"{rank} {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
