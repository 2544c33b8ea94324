"""reduce, gather and scatter against numpy, with every root."""

import ml_dtypes
import numpy as np
import pytest
from helpers.worlds.communicators import outcome, together, world
from numpy.typing import DTypeLike

from pcp.errors import CollectiveAborted, ProtocolError, UsageError
from pcp.runtime.collectives.direct import Exchange
from pcp.runtime.collectives.gather_calls import Scatter
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.schedule import reference

DTYPES = ["float32", "float64", "int32", "bool", ml_dtypes.bfloat16, "complex64"]
SMALL, LARGE = 17, 80_011


def draw(rank: int, shape, dtype: DTypeLike = "float32") -> np.ndarray:
    values = np.random.default_rng(rank).normal(size=shape) * 3
    return values.astype(np.dtype(dtype))


@pytest.fixture(scope="module", params=[("in_process", 1), ("tcp", 2), ("memory", 3)])
def comms(request):
    with world(*request.param) as members:
        yield members


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_reduce_gives_the_root_what_all_reduce_gives(comms, dtype, size):
    arrays = [draw(c.rank, size, dtype) for c in comms]
    for root in range(len(comms)):
        given = [array.copy() for array in arrays]
        together(comms, lambda c, a=given, r=root: c.reduce(a[c.rank], root=r))
        for rank, array in enumerate(given):
            wanted = reference(arrays) if rank == root else arrays[rank]
            assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("op", ["mean", "max", "min", "prod"])
def test_reduce_ops(comms, op):
    arrays = [draw(c.rank, (3, LARGE), ml_dtypes.bfloat16) for c in comms]
    given = [array.copy() for array in arrays]
    together(comms, lambda c: c.reduce(given[c.rank], op, len(comms) - 1))
    assert given[-1].tobytes() == reference(arrays, op).tobytes()


@pytest.mark.parametrize("rows", [0, 2, 9_000])
def test_gather_takes_uneven_parts_to_the_root(comms, rows):
    arrays = [draw(c.rank, (rows + 3 * c.rank, 5)) for c in comms]
    for root in range(len(comms)):
        found = together(comms, lambda c, r=root: c.gather(arrays[c.rank], r))
        assert [x is None for x in found] == [r != root for r in range(len(comms))]
        np.testing.assert_array_equal(found[root], np.concatenate(arrays))


def test_gather_of_scalars(comms):
    found = together(comms, lambda c: c.gather(np.array(c.rank + 0.5)))
    np.testing.assert_array_equal(found[0], np.arange(len(comms)) + 0.5)


@pytest.mark.parametrize("rows", [0, 7, 20_001])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_scatter_is_split_and_takes_its_type_from_the_root(comms, rows, dtype):
    whole = draw(5, (rows, 3), dtype)
    for root in range(len(comms)):
        found = together(
            comms, lambda c, r=root: c.scatter(whole if c.rank == r else None, r)
        )
        for part, wanted in zip(found, np.array_split(whole, len(comms)), strict=True):
            assert (part.dtype, part.shape) == (wanted.dtype, wanted.shape)
            assert part.tobytes() == wanted.tobytes()
            part[...] = part[::-1]  # it is the member's own, also at the root


def test_scatter_with_sizes(comms):
    sizes = list(range(0, 2 * len(comms), 2))
    whole = draw(1, (sum(sizes), 2))
    found = together(
        comms,
        lambda c: (
            c.scatter(whole, 0, sizes=sizes) if c.rank == 0 else c.scatter(None, 0)
        ),
    )
    assert [len(part) for part in found] == sizes
    np.testing.assert_array_equal(np.concatenate(found), whole)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_roots_that_differ_are_an_error_and_change_nothing(size):
    with world("in_process", 3) as members:
        arrays = [draw(c.rank, size) for c in members]
        before = [array.copy() for array in arrays]
        errors = together(
            members, lambda c: outcome(lambda: c.reduce(arrays[c.rank], root=c.rank))
        )
        assert all(isinstance(error, CollectiveAborted) for error in errors)
        assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize("size", [1, 2])
def test_numbers_of_numpy_are_numbers(size):
    root, sizes = np.int64(0), np.array([3] + [1] * (size - 1))

    def calls(comm):
        here = comm.rank == 0
        whole = np.arange(sizes.sum(), dtype=np.float32)
        comm.broadcast(np.zeros(3), root=root)
        comm.gather(np.zeros(1), root=root)
        given = {"sizes": sizes} if here else {}
        part = comm.scatter(whole if here else None, root, **given)
        assert part.size == sizes[comm.rank]
        assert comm.reduce_scatter(whole, sizes=sizes).size == sizes[comm.rank]

    with world("tcp", size) as members:
        for member in members:
            member.timeout = 5
        together(members, calls)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda c: c.reduce(np.zeros(2), root=9), "no rank 9"),
        (lambda c: c.gather([1]), "numpy array"),
        (lambda c: c.scatter(None, 0), "needs an array"),
        (lambda c: c.scatter(np.zeros(()), 0), "first dimension"),
        (lambda c: c.scatter(np.zeros(4), 0, sizes=[1, 1]), "do not split"),
        (lambda c: c.scatter(np.zeros(4), 1), "only the root"),
    ],
)
def test_wrong_use_is_refused(call, word):
    with world("in_process", 2) as members, pytest.raises(UsageError, match=word):
        call(members[0])


def test_a_root_that_scatters_objects_is_refused():
    operation = Scatter(None).operation(MemberContext(1, 2), 1.0)
    assert isinstance(operation, Exchange)
    theirs = {"kind": "scatter", "root": 0, "sizes": [0, 1], "row shape": []}
    with pytest.raises(ProtocolError, match="none here"):
        operation._room(0, theirs | {"dtype": "object"})
