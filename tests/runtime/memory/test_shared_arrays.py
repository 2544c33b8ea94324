"""Arrays that others can map: whose memory it is, when it is used again."""

import gc
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers.present import present

from pcp.runtime import shared_empty as exported
from pcp.runtime.memory.shared_arrays import (
    Offer,
    PeerMappings,
    SharedArrays,
    shared_empty,
)
from pcp.runtime.memory.shared_segment import SHARED, SMALLEST

COUNT = 50_000


@pytest.fixture
def arrays() -> SharedArrays:
    return SharedArrays(limit=1 << 20)


def test_they_are_arrays_like_any_other(arrays) -> None:
    assert exported is shared_empty
    for shape in (COUNT, np.int64(COUNT), (COUNT,), [np.int32(100), COUNT // 50]):
        for dtype in (np.float32, "int64", ml_dtypes.bfloat16):
            array = arrays.empty(shape, dtype)
            assert array.shape == np.empty(shape).shape
            assert array.dtype == dtype
            assert array.flags.c_contiguous
            array[...] = 3
            assert (array == 3).all()
            assert arrays.place(array) is not None


def test_small_ones_and_objects_are_ordinary(arrays) -> None:
    assert arrays.empty((), np.float32).shape == ()
    assert arrays.place(arrays.empty(SMALLEST // 4 - 1)) is None
    assert arrays.place(arrays.empty(COUNT, object)) is None
    assert arrays.place(np.empty(COUNT)) is None
    assert not arrays.live


def test_without_such_memory_they_are_ordinary(arrays, monkeypatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert arrays.place(arrays.empty(COUNT)) is None


def test_a_view_is_found_where_it_lies(arrays) -> None:
    array = arrays.empty((10, COUNT), np.float64)
    whole, part = arrays.place(array), arrays.place(array[3:5])
    assert (part.number, part.offset) == (whole.number, 3 * COUNT * 8)
    assert arrays.place(torch.from_numpy(array)[9].numpy()).offset == 9 * COUNT * 8


def test_memory_is_used_again_when_its_last_view_is_gone(arrays) -> None:
    array = arrays.empty((10, 5000))
    number, row = arrays.place(array).number, array[4]
    del array
    other = arrays.empty((10, 5000))
    assert arrays.place(other).number != number, "a row of it is still there"
    del row
    assert arrays.place(arrays.empty((9, 5000))).number == number


def test_memory_that_others_may_write_to_is_not_used_again(arrays) -> None:
    array = arrays.empty(COUNT)
    number = arrays.place(array).number
    arrays.spoil(arrays.place(array))
    del array
    again = arrays.empty(COUNT)
    assert arrays.place(again).number != number
    assert arrays.live == [arrays.place(again).number]


def test_no_more_is_kept_than_the_limit_and_no_more_is_used_than_most(arrays) -> None:
    many = [arrays.empty(COUNT) for _ in range(present(SHARED.most))]
    assert arrays.place(arrays.empty(COUNT)) is None
    del many
    one = arrays.empty(1_000_000)
    assert arrays.place(one) is not None
    kept = sum(segment.nbytes for segment in arrays._arena.free)
    assert 0 < kept <= 1 << 20


def test_memory_much_too_large_is_left_for_others(arrays) -> None:
    array = arrays.empty(10 * COUNT)
    number = arrays.place(array).number
    del array
    assert arrays.place(arrays.empty(COUNT)).number != number


def test_no_descriptor_is_left(arrays) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    held = [arrays.empty(COUNT) for _ in range(20)]
    assert descriptors() > before
    while held:
        array = held.pop()
        if len(held) % 2:
            arrays.spoil(arrays.place(array))
        del array
    arrays.empty(1_000_000)
    arrays._arena.close()
    arrays.empty(COUNT)
    del arrays
    assert descriptors() <= before + 2


def test_nothing_beyond_the_limit_waits_for_the_next_call(arrays) -> None:
    many = [arrays.empty(4 * COUNT) for _ in range(4)]
    del many
    assert sum(segment.nbytes for segment in arrays._arena.free) <= 1 << 20


FORKED = """
import os
from pcp.runtime.memory.shared_arrays import ARRAYS, shared_empty

kept, free = shared_empty(50_000), shared_empty(50_000)
kept.fill(7)
del free
child = os.fork()
if not child:
    del kept
    others = [shared_empty(50_000) for _ in range(3)]
    for array in others:
        array.fill(99)
    os._exit(sum(ARRAYS.place(array) is None for array in others))
assert os.waitpid(child, 0)[1] == 0
again = shared_empty(50_000)
again.fill(3)
assert (kept == 7).all()
print("apart")
"""


def test_a_forked_process_has_memory_of_its_own() -> None:
    """What it drops, or makes, is nothing of its parent's."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True)
    assert ended.stdout == b"apart\n", ended.stderr


# --- others' arrays ---


def offered(
    reach: PeerMappings, peer: int, offer: Offer, nbytes: int, **how: bool
) -> np.ndarray:
    """The bytes of an offer that is still good, as a reader has them."""
    return present(reach.map(peer, offer, nbytes, **how)).octets[offer.at :][:nbytes]


def test_what_is_mapped_is_the_same_memory(arrays) -> None:
    reach, array = PeerMappings(), arrays.empty((4, COUNT))
    array[...] = 1
    offer = arrays.place(array[1:3]).offer
    assert not reach.reached([7])
    seen = offered(reach, 7, offer, 2 * array[0].nbytes)
    assert reach.reached([7])
    assert not seen.flags.writeable
    assert (seen.view(np.float32) == 1).all()
    room = offered(reach, 7, offer, 2 * array[0].nbytes, writable=True)
    room.view(np.float32)[:] = 5
    assert array[:, 0].tolist() == [1, 5, 5, 1]
    assert (seen.view(np.float32) == 5).all()


def test_its_readers_see_an_owners_token(arrays) -> None:
    place = arrays.place(arrays.empty(COUNT))
    place.segment.token = 1 << 40
    seen = present(PeerMappings().map(1, place.offer, 9))
    assert seen.token == 1 << 40
    place.segment.token = 0
    assert seen.token == 0


def test_once_mapped_is_enough_until_it_is_offered_no_more(arrays) -> None:
    reach, array = PeerMappings(), arrays.empty(COUNT)
    offer = arrays.place(array).offer
    first = reach.map(1, offer, array.nbytes, writable=True)
    assert reach.map(1, offer._replace(fd=1 << 30), array.nbytes) is first
    reach.keep(1, set())
    assert reach.map(1, offer._replace(fd=1 << 30), array.nbytes) is None
    assert reach.reached([1]), "it was before"


@pytest.mark.parametrize(
    "wrong", [{"at": 1 << 63}, {"at": 4096}, {"nonce": b"0"}, {"pid": 1 << 30}]
)
def test_what_is_not_there_is_out_of_reach(arrays, wrong) -> None:
    array = arrays.empty(COUNT)
    offer, nbytes = arrays.place(array).offer, arrays.place(array).segment.nbytes
    assert PeerMappings().map(1, offer._replace(**wrong), nbytes) is None
    reach = PeerMappings()
    assert reach.map(1, offer, nbytes) is not None
    assert reach.map(1, offer._replace(**wrong), nbytes) is None or "pid" in wrong
