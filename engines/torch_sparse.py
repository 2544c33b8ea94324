"""All-reduce of sparse tensors: every rank gets all entries, and adds those that meet.

Ranks may hold different numbers of entries. Their indices, their values and their
shapes are gathered; entries of one index are added in the order of the ranks, by the
same function on all, so that all ranks hold the same bits.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pcp.engines.tensors import ordered
from pcp.engines.torch_work import PcpWork
from pcp.errors import CollectiveAborted, UsageError
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.communicator import Communicator


def all_reduce_sparse(
    comm: Communicator,
    tensor: torch.Tensor,
    word: str,
    timeout: float | None,
    failed: Callable[[BaseException], None] | None = None,
) -> PcpWork:
    """The sparse tensor becomes the sum, or the mean, of all ranks', coalesced."""
    if tensor.layout != torch.sparse_coo:
        raise UsageError(
            f"all_reduce takes dense and sparse COO tensors, not {tensor.layout}; "
            f"tensor.to_sparse() makes one"
        )
    if word not in ("sum", "mean"):
        raise UsageError(
            f"the {word} of sparse tensors is not there, only sum and mean: entries "
            f"that are left out would count as zeros"
        )
    mine = tensor.detach().coalesce()
    shape = np.array([mine.sparse_dim(), *mine.shape], np.int64)
    indices, values = mine.indices().t().contiguous(), mine.values()
    pendings: list[Pending] = [
        comm.all_gather_async(array, timeout=timeout)
        for array in (shape, ordered(indices), ordered(values))
    ]

    def finish(gathered: list[NDArray]) -> None:
        shapes, where, what = gathered
        alike = shapes.size == shape.size * comm.world_size
        if not alike or (shapes.reshape(comm.world_size, -1) != shape).any():
            raise CollectiveAborted(
                f"the ranks' sparse tensors are not alike: rank {comm.rank} has "
                f"{mine.sparse_dim()} sparse dimensions of {list(mine.shape)}"
            )
        total = _coalesced(mine, where, what)
        if word == "mean":
            total = total / comm.world_size
        with torch.no_grad():  # a detached sparse tensor shares no entries with it
            tensor.copy_(total)

    return PcpWork(pendings, [tensor], finish, failed=failed)


def _coalesced(like: torch.Tensor, where: NDArray, what: NDArray) -> torch.Tensor:
    """The sparse tensor of all entries, those of one index added up."""
    entries = where.size // like.sparse_dim() if like.sparse_dim() else 0
    dense: Any = like.shape[like.sparse_dim() :]
    flat = torch.empty(entries * math.prod(dense), dtype=like.dtype)
    ordered(flat)[...] = what
    indices = torch.from_numpy(where.reshape(entries, like.sparse_dim()).T.copy())
    values = flat.reshape(entries, *dense)
    return torch.sparse_coo_tensor(indices, values, like.shape).coalesce()
