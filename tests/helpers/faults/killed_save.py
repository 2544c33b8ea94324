"""Saves a checkpoint in a child that is killed at its n-th step on the disk, for all n.

A step is a call that changes the disk, or half of what is written to a file. Prints
one JSON line for each kill: what was found afterwards, what the next save leaves, and
how many checkpoints are left then.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.safetensors_io import Arrays, to_bytes

MEMORY = Path("/dev/shm")
"""A disk without waiting, where there is one: what is asked is the order of steps."""
STEPS = ("mkdir", "open", "fsync", "rename", "unlink", "rmdir")


def state(number: int, value: int) -> Checkpoint:
    """A checkpoint whose tensors all hold `value`."""
    array = {"w": np.full(3000, value, np.float32)}
    return Checkpoint(number, array, array, [array])


def count_down(steps: int) -> None:
    """Die at the n-th step from now on."""
    left = iter(range(steps))

    def step() -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(call):
        def counted(*arguments, **named):
            step()
            return call(*arguments, **named)

        return counted

    write = checkpoints._write

    def write_half_first(path: Path, content: bytes | Arrays) -> dict[str, Any]:
        whole = content if isinstance(content, bytes) else to_bytes(content)
        path.write_bytes(whole[: len(whole) // 2])
        step()
        return write(path, content)

    for name in STEPS:
        setattr(os, name, dying(getattr(os, name)))
    checkpoints._write = write_half_first


def killed_at(run: Path, steps: int, keep: int, value: int) -> bool:
    """Save round 2 in a child that dies; False if it was done before."""
    child = os.fork()
    if child == 0:
        count_down(steps)
        checkpoints.save(run, state(2, value), keep)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def value_of(checkpoint: Checkpoint | None) -> list[int]:
    """Its round and the value in all its tensors."""
    assert checkpoint is not None
    arrays = [*checkpoint.parameters.values(), *checkpoint.workers[0].values()]
    (value,) = {float(v) for array in arrays for v in np.unique(array)}
    return [checkpoint.round, int(value)]


def main(keep: int) -> None:
    """Kill a first and a second save of round 2 at each step."""
    for again in (False, True):
        for steps in range(1000):
            run = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
            try:
                checkpoints.save(run, state(1, 1), keep)
                if again:
                    checkpoints.save(run, state(2, 2), keep)
                if not killed_at(run, steps, keep, 3 if again else 2):
                    break
                found, refused = checkpoints.newest(run)
                checkpoints.save(run, state(3, 3), keep)
                following, _ = checkpoints.newest(run)
                point = {
                    "again": again,
                    "found": value_of(found),
                    "refused": refused,
                    "next": value_of(following),
                    "left": len(list((run / checkpoints.FOLDER).iterdir())),
                }
                print(json.dumps(point), flush=True)
            finally:
                shutil.rmtree(run)


if __name__ == "__main__":
    main(int(sys.argv[1]))
