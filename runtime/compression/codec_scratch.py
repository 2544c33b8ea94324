"""Memory in which a codec works, one array a thread."""

import threading

import numpy as np
from numpy.typing import NDArray

KEPT = 1 << 18
"""The most elements of an array that a thread keeps."""


class CodecScratch(threading.local):
    """A float32 array of the calling thread, used again by each call.

    Fresh memory costs a page fault every 4 KiB: for encoding as much as the work.
    """

    def __init__(self) -> None:
        self._array = np.empty(0, np.float32)

    def like(self, blocks: NDArray[np.float32]) -> NDArray[np.float32]:
        """An array of this shape, with any content, until the thread's next call."""
        if blocks.size > KEPT:
            return np.empty_like(blocks)
        if self._array.size < blocks.size:
            self._array = np.empty(blocks.size, np.float32)
        return self._array[: blocks.size].reshape(blocks.shape)


SCRATCH = CodecScratch()
