"""Tensors of torch and arrays of jax in a communicator's calls, on the CPU.

Neither package is imported here: a caller with such arrays has imported it. A
tensor is used in place, as a numpy array is. A jax.Array cannot change: a call
that writes in place writes to a copy, which comes back as a new jax.Array; a call
that only reads reads it in place. Results are of the kind of the argument, over
the memory that the call filled.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.collectives.call import Call
from pcp.runtime.collectives.pending import Pending

C = TypeVar("C", bound=Call[Any])
Back = Callable[[Any], Any]

_BITS = {1: "uint8", 2: "uint16"}


def entered(call: C, start: Callable[[C], Pending]) -> Pending:
    """Start a call whose array may be a tensor of torch or an array of jax."""
    given, back = call.given, None
    taken = given
    if given is not None and not isinstance(given, np.ndarray):
        taken, back = _enter(given, call.writes)
        call = replace(call, **{call.memory: taken})
    pending = start(call)
    return pending if back is None else ConvertedPending(pending, back)


class ConvertedPending(Pending):
    """An operation whose value is converted to the caller's kind of array."""

    def __init__(self, inner: Pending, back: Back) -> None:
        super().__init__()
        self._back = back
        self.by, self.of = inner.by, inner.of
        inner.add_done_callback(self._finish)

    def _finish(self, inner: Any) -> None:
        # Without a cycle unused arrays are freed at once.
        try:
            value = self._back(inner.result(0))
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(value)
        finally:
            del self, inner


def of_torch(tensor: Any) -> NDArray:
    """The memory of a tensor as a numpy array of its shape.

    Not by `numpy()`, after which torch never resizes the storage again, as FSDP does
    with its parameters.
    Types that numpy lacks (bfloat16, the 8-bit floats) need `ml_dtypes`.
    UsageError for tensors that are not dense, contiguous and on the CPU.
    """
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise UsageError(
            f"pcp's collectives take dense tensors on the CPU, not "
            f"{tensor.layout} on {tensor.device}; move it there with .cpu()"
        )
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise UsageError(
            "pcp's collectives use a tensor's memory as it lies: it must be "
            "contiguous, and neither a conjugate nor a negative view; use .clone()"
        )
    plain = tensor.detach()
    name = str(plain.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return np.from_dlpack(plain)
    bits = getattr(torch, _BITS[plain.element_size()])
    return np.from_dlpack(plain.view(bits)).view(_ml_dtype(name))


def to_torch(array: NDArray) -> Any:
    """A tensor over the memory of a numpy array."""
    torch = sys.modules["torch"]
    name = array.dtype.name
    if name != "bfloat16" and not name.startswith("float8"):
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(_BITS[array.dtype.itemsize]))
    return bits.view(getattr(torch, name))


def _enter(given: Any, writes: bool) -> tuple[Any, Back | None]:
    """The numpy array of a call, and the conversion of its value back."""
    one = given[0] if isinstance(given, (list, tuple)) and given else given
    kind = _kind(one)
    if kind is None:
        return given, None
    to_numpy, to_kind = kind
    if one is not given:
        taken = [to_numpy(x, False) if _kind(x) else x for x in given]
        return taken, lambda values: [to_kind(value) for value in values]
    taken = to_numpy(given, writes)

    def back(value: Any) -> Any:
        if value is taken and _is_tensor(given):
            return given
        return None if value is None else to_kind(value)

    return taken, back


def _kind(given: Any) -> tuple[Callable[[Any, bool], NDArray], Back] | None:
    if _is_tensor(given):
        return lambda tensor, _: of_torch(tensor), to_torch
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(given, jax.Array):
        return _of_jax, jax.numpy.asarray
    return None


def _is_tensor(given: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def _of_jax(array: Any, writes: bool) -> NDArray:
    if {device.platform for device in array.devices()} != {"cpu"}:
        raise UsageError(
            "pcp's collectives take arrays on the CPU; use jax.device_put(array, cpu)"
        )
    # Rank 0 stays rank 0, and a row-major copy is made only where it must be.
    return np.array(array, copy=True if writes else None, order="C")


def _ml_dtype(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"tensors of {name} need the package ml_dtypes") from None
    if not hasattr(ml_dtypes, name):
        raise UsageError(f"tensors of {name} cannot be communicated")
    return np.dtype(getattr(ml_dtypes, name))
