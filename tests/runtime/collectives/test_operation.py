"""What an operation leaves behind, however it ends."""

import gc
import weakref
from contextlib import suppress

import numpy as np
import pytest
from helpers.worlds.communicators import eventually, together, world

from pcp.errors import CollectiveAborted
from pcp.runtime.communicator.communicator import Communicator

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


@pytest.mark.parametrize(
    "call",
    [
        lambda c, a: c.all_reduced(a, algorithm="ring"),
        lambda c, a: c.all_reduced(a, algorithm="tree"),
        lambda c, a: c.all_reduced(a, compression="fp16"),
        lambda c, a: c.all_gather(a),
        lambda c, a: c.all_to_all(a),
        lambda c, a: c.permute(a, [(0, 1), (1, 0)]),
    ],
)
def test_the_memory_of_results_is_used_again_when_they_are_dropped(call) -> None:
    with world("tcp", 2) as comms:
        arrays = [np.full(1 << 16, 1 + rank, np.float32) for rank in range(2)]

        def run(comm):
            first = call(comm, arrays[comm.rank])
            at, kept = first.ctypes.data, first[5:9]
            values = kept.tolist()
            del first
            second = call(comm, arrays[comm.rank])
            assert second.ctypes.data != at, "somebody sees a part of the first"
            assert kept.tolist() == values
            del kept
            return at, [call(comm, arrays[comm.rank]) for _ in range(3)]

        for at, results in together(comms, run):
            assert at in [result.ctypes.data for result in results]
