"""Saves checkpoints while the disk takes no large file, then again when it does."""

import resource
import signal
import sys

import numpy as np

from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.checkpoint import Checkpoint


def main(run: str) -> None:
    """Round 1 fits, round 2 does not, round 3 comes when there is room."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead
    array = {"w": np.ones(50_000, np.float32)}
    checkpoints.save(run, Checkpoint(1, array, array, [array]))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
    try:
        checkpoints.save(run, Checkpoint(2, array, array, [array]))
    except OSError as error:
        print(error.strerror, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    path = checkpoints.save(run, Checkpoint(3, array, array, [array]))
    print(f"saved {path.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
