"""What an operation leaves behind, however it ends."""

import gc
import weakref
from contextlib import suppress

import numpy as np
from helpers.worlds import eventually, together, world

from pcp.errors import CollectiveAborted
from pcp.runtime.communicator import Communicator

LARGE = 40_013
"""Elements beyond the eager limit."""


def test_arrays_of_an_operation_that_failed_go_without_the_collector():
    """Its fault's trace leads to the arrays, so nothing there may lead to the fault."""
    with world("in_process", 2) as comms:
        left: list[weakref.ref] = []

        def fail(comm: Communicator) -> None:
            array = np.ones(LARGE, np.float32)
            left.append(weakref.ref(array))
            with suppress(CollectiveAborted):
                comm.all_reduced(array, ("sum", "max")[comm.rank])

        gc.collect()
        gc.disable()
        try:
            together(comms, fail)
            eventually(lambda: not any(ref() is not None for ref in left), 10)
        finally:
            gc.enable()
