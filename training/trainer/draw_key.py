"""The draw key of a call of the program.

The key follows from the run's seed and the position of the call's first sample in the
run's order (below 0 for held-out ones), and not from the time or the worker. So a round
that is made again, by another worker or in a replay, has the same bits. The program
folds the purpose of each op into the key.
"""

import hashlib

import numpy as np

from pcp.manifest import TensorSpec


def key_of(seed: int, position: int) -> np.ndarray:
    """Two words of 32 bits, others for other arguments."""
    digest = hashlib.sha256(f"key/{seed}/{position}".encode()).digest()
    return np.frombuffer(digest[:8], "<u4").copy()


def keys(spec: TensorSpec, seed: int, positions: np.ndarray) -> np.ndarray:
    """The key of a call on the samples at `positions`, with a row for each piece."""
    if len(spec.shape) == 1:
        return key_of(seed, int(positions[0]))
    firsts = np.split(np.asarray(positions), spec.shape[0])
    return np.stack([key_of(seed, int(piece[0])) for piece in firsts])
