"""Results of a program's sums, made in memory that members of one machine share."""

import gc

import numpy as np
import pytest
from helpers.models.handwritten_imports import PLAIN, plain
from helpers.present import present
from helpers.worlds.communicators import eventually, outcome, together, world

from pcp.errors import CollectiveAborted, PeerLost
from pcp.runtime.memory.shared_arrays import ARRAYS
from pcp.runtime.memory.shared_segment import SHARED
from pcp.runtime.program.executor import Program
from pcp.runtime.transport import mover


@pytest.fixture
def programs(device):
    """The program of two members that share memory, and have shared some before."""
    with world("memory", 2) as comms:
        made = [Program.load(plain(), device, communicator=c) for c in comms]
        together(comms, lambda c: c.all_reduced(np.ones(PLAIN["large"], np.float32)))
        yield made
        for program in made:
            program.close()


def given(name: str, rank: int, step: int) -> np.ndarray:
    """Whole numbers, of which every sum is exact."""
    drawn = np.random.default_rng((rank, step)).integers(-99, 99, PLAIN[name])
    return drawn.astype(np.float32)


def wanted(name: str, step: int) -> np.ndarray:
    return 2 * (given(name, 0, step) + given(name, 1, step))


def is_shared(result) -> bool:
    return ARRAYS.place(present(result.device.memory(result.view, "f32"))) is not None


@pytest.mark.parametrize("name", PLAIN)
def test_results_are_made_where_they_stay_and_their_memory_comes_back(programs, name):
    gc.collect()
    before = len(ARRAYS._used)

    def run(rank):
        kept = []
        for step in range(12):
            mine = programs[rank].to_device(given(name, rank, step))
            made = programs[rank][name](mine, device_arrays=True)
            assert is_shared(made) == hasattr(mover.compiled, "lend")
            assert np.array_equal(mine.numpy(), given(name, rank, step))
            kept = [*kept[-2:], (step, made)]
            for then, array in kept:
                assert np.array_equal(array.numpy(), wanted(name, then)), (step, then)

    together(range(2), run)
    eventually(lambda: len(ARRAYS._used) <= before)


def test_results_beyond_half_of_what_may_be_shared_are_copied_out(programs):
    many = present(SHARED.most) // 2 + 2

    def run(rank):
        kept = [
            programs[rank]["small"](given("small", rank, step), device_arrays=True)
            for step in range(many)
        ]
        for step, array in enumerate(kept):
            assert np.array_equal(array.numpy(), wanted("small", step)), step
        return [is_shared(array) for array in kept]

    found = [one for each in together(range(2), run) for one in each]
    assert not all(found)
    assert any(found) == hasattr(mover.compiled, "lend")


def test_without_the_compiled_loops_results_are_copied(programs):
    with mover.in_python():
        made = together(
            range(2),
            lambda r: programs[r]["large"](given("large", r, 0), device_arrays=True),
        )
    for array in made:
        assert not is_shared(array)
        assert np.array_equal(array.numpy(), wanted("large", 0))


def test_a_failed_sum_leaves_the_argument_and_the_next_call_works(programs):
    """Member 1 gives up what member 0 has begun, and both call again."""
    mine = programs[0].to_device(given("large", 0, 0))

    def run(rank):
        if rank == 0:
            return outcome(lambda: programs[0]["large"](mine, device_arrays=True))
        programs[1].communicator.close(timeout=0)
        return None

    fault, _ = together(range(2), run)
    assert isinstance(fault, PeerLost | CollectiveAborted)
    assert np.array_equal(mine.numpy(), given("large", 0, 0))
    with world("memory", 2) as comms:
        for program, comm in zip(programs, comms, strict=True):
            program.communicator = comm
        for step in range(3):
            made = together(
                range(2),
                lambda r, s=step: programs[r]["large"](given("large", r, s)),
            )
            assert all(np.array_equal(m, wanted("large", step)) for m in made)
