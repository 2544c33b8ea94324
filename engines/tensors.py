"""Torch tensors on the CPU as numpy arrays over the same memory."""

import numpy as np
import torch
from numpy.typing import NDArray

from pcp.errors import UsageError

_BITS = {1: torch.uint8, 2: torch.uint16}


def array_of(tensor: torch.Tensor) -> NDArray:
    """A flat array over the memory of a contiguous tensor.

    Types that numpy lacks (bfloat16, the 8-bit floats) need `ml_dtypes`.
    UsageError for tensors that are not dense, not on the CPU or not contiguous.
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise UsageError(
            f"pcp's collectives take dense tensors on the CPU, not "
            f"{tensor.layout} on {tensor.device}; move it there with .cpu()"
        )
    if not tensor.is_contiguous():
        raise UsageError("a view of a tensor's memory needs a contiguous tensor")
    flat = tensor.detach().reshape(-1).resolve_conj().resolve_neg()
    name = str(flat.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return flat.numpy()
    return flat.view(_BITS[flat.element_size()]).numpy().view(_foreign(name))


def fill(tensor: torch.Tensor, values: NDArray) -> None:
    """The values, in order, become the tensor's, bit by bit."""
    target = (
        tensor
        if tensor.is_contiguous()
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    )
    array = array_of(target)
    if array.size != values.size:
        raise UsageError(f"{values.size} elements arrive for a tensor of {array.size}")
    np.copyto(array, values.reshape(-1))
    if target is not tensor:
        tensor.detach().copy_(target)


def _foreign(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"tensors of {name} need the package ml_dtypes") from None
    if not hasattr(ml_dtypes, name):
        raise UsageError(f"tensors of {name} cannot be communicated")
    return np.dtype(getattr(ml_dtypes, name))
