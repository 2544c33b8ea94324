"""Tensors of torch and arrays of jax in every call: kind, memory, values."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from helpers.worlds.communicators import eventually, outcome, together, world

from pcp.errors import CollectiveAborted, UsageError
from pcp.runtime import shared_empty

TORCH = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
JAX = [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int32, jnp.bool_]


@pytest.fixture(scope="module")
def comms():
    with world("in_process", 2) as members:
        yield members


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("size", [3, 50_000])
def test_a_tensor_is_reduced_where_it_lies(comms, dtype, size):
    tensors = [torch.full((size,), r).to(dtype) for r in range(2)]
    found = together(comms, lambda c: c.all_reduce(tensors[c.rank]))
    for tensor, result in zip(tensors, found, strict=True):
        assert result is tensor
        assert tensor.dtype is dtype
        assert (tensor.float() == 1).all()


@pytest.mark.parametrize("kind", [np.ones, torch.ones])
def test_what_is_under_way_is_not_cancelled(comms, kind) -> None:
    first = comms[0].all_reduce_async(kind(3))
    assert not first.cancel()
    assert not first.cancelled()
    second = comms[1].all_reduce_async(kind(3))
    assert first.result(30).tolist() == second.result(30).tolist() == [2.0] * 3
    assert not first.cancel()


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_a_tensor_can_be_resized_afterwards(comms, dtype):
    """As FSDP does with its parameters, and `Tensor.numpy` ends for ever."""
    tensors = [torch.ones(8).to(dtype) for _ in range(2)]
    together(comms, lambda c: c.all_reduce(tensors[c.rank]))
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("size", [5, 300])
@pytest.mark.parametrize("call", ["all_reduce", "all_reduced"])
def test_one_member_may_bring_a_matrix(comms, call, size):
    """Slices of it have two dimensions, and its product is another one."""
    arrays = [np.full((size, size), r + 1, np.float32) for r in range(2)]
    given = [arrays[0].view(np.matrix), arrays[1]]
    for result in together(comms, lambda c: getattr(c, call)(given[c.rank])):
        assert result.shape == (size, size)
        assert (np.asarray(result) == 3).all()


def every_call(make, comm) -> list:
    """Each collective once; `make(shape, value)` gives an array of a kind."""
    mine, other = make((4, 3), comm.rank + 1), 1 - comm.rank
    pending = comm.send_async(make((2,), comm.rank), other)
    found = [
        comm.recv(make((2,), 9), other),
        comm.all_reduce(make((), comm.rank)),
        comm.all_reduced(make((3,), comm.rank)),
        comm.reduce_scatter(mine),
        comm.all_gather(mine),
        comm.broadcast(make((2,), comm.rank), 1),
        comm.all_to_all(mine),
        comm.permute(mine, [(0, 1), (1, 0)]),
        comm.reduce(make((2,), 3), root=comm.rank * 0),
        comm.gather(mine, 1),
        *comm.exchange([make((1, 2), 5), make((3, 2), comm.rank)]),
    ]
    scattered = comm.scatter(make((5, 2), 7) if comm.rank == 0 else None)
    pending.result()
    return [*found, scattered]


@pytest.mark.parametrize("dtype", list(zip(TORCH, JAX, strict=True)), ids=str)
def test_every_call_gives_what_it_gives_for_numpy(comms, dtype):
    kinds = {
        torch.Tensor: lambda shape, v: torch.full(shape, v).to(dtype[0]),
        jax.Array: lambda shape, v: jnp.full(shape, v).astype(dtype[1]),
    }
    wide = np.int64 if dtype[0] is torch.int64 else None
    plain = lambda shape, v: np.array(kinds[jax.Array](shape, v)).astype(  # noqa: E731
        wide or np.dtype(dtype[1])
    )
    wanted = together(comms, lambda c: every_call(plain, c))
    for kind, make in kinds.items():
        found = together(comms, lambda c, m=make: every_call(m, c))
        for rank in range(2):
            for index, (a, b) in enumerate(zip(found[rank], wanted[rank], strict=True)):
                if b is None or (rank == 1 and index == len(wanted[rank]) - 1):
                    assert type(a) is type(b)  # what is received by None is numpy's
                    continue
                assert isinstance(a, kind), index
                values = a.float().numpy() if kind is torch.Tensor else np.asarray(a)
                assert tuple(a.shape) == b.shape
                np.testing.assert_array_equal(
                    values.astype(np.float32), b.astype(np.float32)
                )


def test_a_jax_array_does_not_change(comms):
    arrays = [jnp.arange(40_000.0) + c.rank for c in comms]
    found = together(comms, lambda c: c.all_reduce(arrays[c.rank], "max"))
    for rank in range(2):
        np.testing.assert_array_equal(arrays[rank], np.arange(40_000.0) + rank)
        np.testing.assert_array_equal(found[rank], np.arange(40_000.0) + 1)


def test_a_reduced_copy_leaves_tensors_and_arrays_alone():
    """In memory that members share, too: a tensor over it, and what comes back."""
    with world("memory", 2) as members:
        for make in (torch.from_numpy, jnp.asarray):
            given = [shared_empty(40_000) for _ in members]
            for rank, array in enumerate(given):
                array.fill(rank + 1)
            arrays = [make(array) for array in given]
            for _ in range(3):
                found = together(members, lambda c, a=arrays: c.all_reduced(a[c.rank]))
                assert all(type(x) is type(arrays[0]) for x in found)
                assert all(bool((x == 3).all()) for x in found)
                assert [float(x[9]) for x in arrays] == [1, 2]


def test_a_gradient_is_not_followed(comms):
    tensors = [torch.ones(3, requires_grad=True) for _ in comms]
    together(comms, lambda c: c.all_reduce(tensors[c.rank]))
    assert tensors[0].tolist() == [2, 2, 2]
    assert tensors[0].requires_grad


def test_a_failure_comes_through_and_changes_nothing():
    with world("in_process", 2) as members:
        tensors = [torch.ones(3 + c.rank) for c in members]
        errors = together(
            members, lambda c: outcome(lambda: c.all_reduce(tensors[c.rank]))
        )
        assert all(isinstance(error, CollectiveAborted) for error in errors)
        assert all((tensor == 1).all() for tensor in tensors)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, 2).t(), torch.ones(2).to_sparse(), torch.ones(2, device="meta")],
)
def test_tensors_that_do_not_lie_plainly_are_refused(comms, tensor):
    with pytest.raises(UsageError, match="pcp's collectives"):
        comms[0].all_reduce(tensor)


@pytest.mark.parametrize("ones", [torch.ones, jnp.ones])
def test_dropped_results_need_no_garbage_collector(ones) -> None:
    with world("tcp", 2) as comms:

        def run(comm):
            call = comm.all_reduced_async
            gc.collect()
            gc.disable()
            pending = call(ones(1 << 16), algorithm="ring")
            pending.result()
            watched = weakref.ref(pending)
            del pending
            return eventually(lambda: watched() is None)

        try:
            together(comms, run)
        finally:
            gc.enable()
