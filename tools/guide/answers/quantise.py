"""Chapter 5: a sum in fewer bytes.

`pcp guide check 5` runs your functions.
"""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


def encode(values: F32) -> tuple[np.float32, I8]:
    """A scale, and integers of -127 to 127, such that scale x integer is near a value.

    The largest magnitude becomes 127; values that are all zero have scale 0.
    """
    # (answer
    scale = np.float32(np.abs(values).max(initial=0) / 127)
    if scale == 0:
        return scale, np.zeros(values.shape, np.int8)
    return scale, np.rint(values / scale).astype(np.int8)
    # answer)


def decode(scale: np.float32, codes: I8) -> F32:
    """What the receiver makes of it."""
    # (answer
    return scale * codes.astype(np.float32)
    # answer)


def with_feedback(values: F32, error: F32) -> tuple[tuple[np.float32, I8], F32]:
    """What is sent of `values` when `error` was not sent before, and the new error.

    Sent is the code of values + error; the new error is what that code lacks. Over
    many rounds nothing is lost: what was sent and the last error are what was given.
    """
    # (answer
    wanted = values + error
    sent = encode(wanted)
    return sent, wanted - decode(*sent)
    # answer)
