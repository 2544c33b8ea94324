"""Torch tensors of any layout in memory, read and written in order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.communicator.array_interop import of_torch

Tensors = Sequence[torch.Tensor]


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


def back(tensors: Tensors) -> Any:
    """A function that writes values to tensors that were not used in place."""

    def finish(values: list[NDArray]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            if not tensor.is_contiguous():
                fill(tensor, value)

    return finish


def into(tensors: Tensors) -> Any:
    """A function that writes each value to its tensor."""

    def finish(values: Sequence[NDArray]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            fill(tensor, value)

    return finish


def spread(tensors: Tensors, values: NDArray) -> None:
    """Write consecutive parts of the values to the tensors."""
    at = 0
    for tensor in tensors:
        fill(tensor, values[at : at + tensor.numel()])
        at += tensor.numel()
    if at != values.size:
        raise UsageError(f"{values.size} elements arrive for tensors of {at}")
