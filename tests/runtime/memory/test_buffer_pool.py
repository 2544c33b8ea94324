"""Bytes of arrays and the scratch pool; MLIR's types as numpy's."""

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.present import present

from pcp.errors import BundleError, UsageError
from pcp.manifest import DTYPE_BITS
from pcp.runtime.memory.buffer_pool import BufferPool, checked, octets
from pcp.runtime.memory.dtypes import bits_dtype, numpy_dtype


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.array(7, np.int16),
        np.zeros((0, 3), np.complex64),
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.array([True, False]),
    ],
)
def test_octets_are_the_bytes_themselves(array):
    view = octets(array)
    assert bytes(view) == array.tobytes()
    if len(view):
        view[0] ^= 1
        assert bytes(view) == array.tobytes(), "no copy was made"


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.ones(3, ">f4"),
        np.ones((3, 2))[:, 0],
        [1, 2],
        np.ma.masked_less(np.arange(3), 1),
    ],
)
def test_what_a_collective_cannot_use_is_refused(array):
    with pytest.raises(UsageError):
        checked(array, "it")


def test_what_only_looks_otherwise_is_used_as_the_plain_array_it_is(tmp_path):
    on_disk = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 3))
    for array in (on_disk, np.zeros((4, 3)).view(np.matrix)):
        plain = checked(array, "it", writable=True)
        assert type(plain) is np.ndarray
        assert np.shares_memory(plain, array)


def test_the_pool_reuses_and_is_bounded():
    pool = BufferPool(limit=1 << 20)
    first = pool.take(1000, np.dtype(np.float32))
    assert (first.shape, first.dtype) == ((1000,), np.float32)
    address = first.__array_interface__["data"][0]
    pool.give(first)
    again = pool.take(500, np.dtype(np.float64))
    assert again.__array_interface__["data"][0] == address
    assert pool.take(1000, np.dtype(np.float32)).__array_interface__["data"][0] != (
        address
    )
    pool.give(again)
    for _ in range(40):
        pool.give(np.empty(1 << 18, np.uint8))
    assert pool._arena._kept <= 1 << 20


def test_a_new_array_comes_back_when_nobody_has_a_view_of_it():
    pool = BufferPool(limit=1 << 20)
    array = pool.new((3, 1 << 15), np.dtype(np.int32))
    assert (array.shape, array.dtype) == ((3, 1 << 15), np.int32)
    address = array.__array_interface__["data"][0]
    row = array[1, 5:]
    del array
    assert pool.new((3 << 15,), np.dtype(np.int32)).ctypes.data != address
    writing = octets(row)
    del row
    assert pool.new((3 << 15,), np.dtype(np.int32)).ctypes.data != address
    del writing
    taken = [pool.take(3 << 15, np.dtype(np.int32)) for _ in range(2)]
    assert address in [t.ctypes.data for t in taken]


def test_what_comes_back_is_bounded_whatever_its_size():
    pool = BufferPool(limit=1 << 20)
    many = [pool.new(((64 << 10) + 1,), np.dtype(np.uint8)) for _ in range(40)]
    del many[:]
    kept = [raw.nbytes for raw, _ in pool._arena._dropped if raw is not None]
    assert 0 < sum(kept) <= 1 << 20
    pool.take(1, np.dtype(np.uint8))
    assert not pool._arena._dropped
    assert 0 < (kept := pool._arena._kept) <= 1 << 20
    pool.give(np.empty((1 << 20) + 1, np.uint8))
    assert pool._arena._kept == kept, "what does not fit drives nothing out"
    # Sizes that are in use now drive out those that were.
    array = pool.new((1 << 20,), np.dtype(np.uint8))
    address = array.ctypes.data
    del array
    assert pool.new((1 << 20,), np.dtype(np.uint8)).ctypes.data == address


def test_a_result_does_not_hold_the_pool():
    pool = BufferPool()
    kept = pool.new((64 << 10,), np.dtype(np.uint8))
    gone = weakref.ref(pool)
    pool.give(pool.take(1 << 20, np.dtype(np.uint8)))
    del pool
    assert gone() is None
    kept[:] = 1
    del kept


def _drop(pool: BufferPool, count: int) -> None:
    """Let go of arrays, every other of which only the collector finds."""
    held: list[list[Any]] = [
        [pool.new((64 << 10,), np.dtype(np.uint8))] for _ in range(count)
    ]
    for cycle in held[::2]:
        cycle.append(cycle)


def test_arrays_that_go_in_a_collection_come_back_all():
    """The collector may free some while another one is being given back."""
    pool = BufferPool(limit=64 << 20)
    arena = pool._arena
    for _ in range(20):
        _drop(pool, 40)
        gc.collect()
        assert len(arena._dropped) + sum(map(len, arena._shelves.values())) == 40
        assert arena._dropped[-1][1] == sum(
            present(raw).nbytes for raw, _ in arena._dropped
        )
        pool.give(pool.take(1, np.dtype(np.uint8)))


def test_every_type_of_a_manifest_has_an_array():
    for name, bits in DTYPE_BITS.items():
        assert 8 * numpy_dtype(name).itemsize == bits
        assert bits_dtype(name).itemsize == numpy_dtype(name).itemsize
        assert np.zeros(2, bits_dtype(name)).data.nbytes
    with pytest.raises(BundleError):
        numpy_dtype("f4E2M1FN")
