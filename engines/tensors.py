"""Torch tensors of any layout in memory, read and written in order."""

import numpy as np
import torch
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.communicator.array_interop import of_torch


def ordered(tensor: torch.Tensor) -> NDArray:
    """The elements in a flat array: the tensor's memory where it is contiguous.

    UsageError for tensors that are not dense or not on the CPU.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    return of_torch(plain.contiguous()).reshape(-1)


def fill(tensor: torch.Tensor, values: NDArray) -> None:
    """Write the values into the tensor in order, bit by bit."""
    if tensor.numel() != values.size:
        raise UsageError(
            f"{values.size} elements arrive for a tensor of {tensor.numel()}"
        )
    lies_in_order = tensor.is_contiguous() and not tensor.is_conj()
    target = tensor if lies_in_order else torch.empty(tensor.shape, dtype=tensor.dtype)
    np.copyto(of_torch(target).reshape(-1), values.reshape(-1))
    if target is not tensor:
        tensor.detach().copy_(target)
