"""Stacks: one tensor on a device whose rows are values of their own to callers.

A part of a function takes and gives stacks (`pcp.bundle.Part`), and what calls the
function has the rows, by their names. A row is a place in its stack, and keeps all of
it. Rows that are passed on together, in their order, are their stack again, without a
copy; any others are copied into one. A function that takes a row alone gets a copy:
code takes that a tensor begins where memory is aligned.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import BundleError
from pcp.runtime.memory.dtypes import numpy_dtype


class Stack:
    """A buffer view with rows; what it holds does not change while it has any."""

    __slots__ = ("_copy", "_lock", "count", "device", "dtype", "view")

    def __init__(self, device: Any, view: Any) -> None:
        self.device: Any = device
        self.view = view
        self.dtype: str = device.element(view)
        """MLIR's name of the element type."""
        self.count: int = view.shape[0] if len(view.shape) else 0
        self._copy: NDArray | None = None
        self._lock = threading.Lock()

    def rows(self, count: int) -> "list[Row]":
        """The rows, in their order, of which a manifest says that there are `count`."""
        if count != self.count:
            raise BundleError(
                f"the manifest says {count} rows of a tensor of {self.count}"
            )
        return [Row(self, number) for number in range(self.count)]

    def memory(self) -> NDArray:
        """The contents: the stack's own memory, or one copy where that is not here."""
        memory = self.device.memory(self.view, self.dtype)
        if memory is not None:
            return memory
        with self._lock:
            copy = self._copy
            if copy is None:
                copy = self._copy = self.device.download(self.view, self.dtype)
            return copy


class Row:
    """One row of a stack."""

    __slots__ = ("number", "stack")

    def __init__(self, stack: Stack, number: int) -> None:
        self.stack, self.number = stack, number

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.stack.view.shape)[1:]

    def numpy(self) -> NDArray:
        """A copy of its contents."""
        return np.array(self.stack.memory()[self.number])  # of a scalar, too

    def copy(self) -> Any:
        """A buffer view with its contents, in memory of its own."""
        stack = self.stack
        return stack.device.upload(self.numpy(), stack.dtype)


class Host:
    """An array that is not on the device yet, and MLIR's name of its element type."""

    __slots__ = ("array", "dtype")

    def __init__(self, array: NDArray, dtype: str) -> None:
        self.array, self.dtype = array, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape


Value = Any
"""A buffer view, a `Row` or a `Host`."""


def joined(device: Any, values: Sequence[Value]) -> Any:
    """A buffer view of values, one under the other."""
    first = values[0]
    if isinstance(first, Row) and first.stack.count == len(values):
        stack = first.stack
        if all(
            isinstance(value, Row) and value.stack is stack and value.number == number
            for number, value in enumerate(values)
        ):
            return stack.view
    dtype = _dtype(device, first)
    shape = (len(values), *first.shape)
    made = device.unfilled(shape, dtype)
    room = device.memory(made, dtype)
    whole = np.empty(shape, numpy_dtype(dtype)) if room is None else room
    for number, value in enumerate(values):
        if tuple(value.shape) != tuple(first.shape) or _dtype(device, value) != dtype:
            raise BundleError("the manifest stacks tensors of different types")
        whole[number] = _contents(device, value, dtype)
    return device.upload(whole, dtype) if room is None else made


def alone(device: Any, value: Value) -> Any:
    """A buffer view of a value by itself."""
    if isinstance(value, Row):
        return value.copy()
    if isinstance(value, Host):
        return device.upload(value.array, value.dtype)
    return value


def holder(value: Value) -> Any:
    """The buffer view in whose memory a value lies."""
    return value.stack.view if isinstance(value, Row) else value


def holders(values: Sequence[Value]) -> list[Any]:
    """The buffer views in whose memory values lie; a stack of rows once."""
    found: list[Any] = []
    seen: set[int] = set()
    for value in values:
        if not isinstance(value, Row):
            found.append(value)
        elif id(value.stack) not in seen:
            seen.add(id(value.stack))
            found.append(value.stack.view)
    return found


def in_copies(device: Any, values: Sequence[Value], copied: set[int]) -> list[Value]:
    """The values, those in the buffer views of these identities in copies of them.

    Of a value that is there twice the second is one, too.
    """
    made: dict[int, Stack] = {}
    seen: set[tuple[int, int]] = set()
    found: list[Value] = []
    for value in values:
        if not isinstance(value, Row):
            key = id(value), 0
            again = id(value) in copied or key in seen
            found.append(_copy(device, value) if again else value)
        else:
            key = id(value.stack), value.number
            stack = value.stack
            if id(stack.view) in copied:
                if id(stack) not in made:
                    made[id(stack)] = Stack(device, _copy(device, stack.view))
                stack = made[id(stack)]
            found.append(value.copy() if key in seen else Row(stack, value.number))
        seen.add(key)
    return found


def _copy(device: Any, view: Any) -> Any:
    return device.duplicate(view, device.element(view))


def _dtype(device: Any, value: Value) -> str:
    if isinstance(value, Row):
        return value.stack.dtype
    return value.dtype if isinstance(value, Host) else device.element(value)


def _contents(device: Any, value: Value, dtype: str) -> NDArray:
    """A value as an array, without a copy where that can be."""
    if isinstance(value, Row):
        return value.stack.memory()[value.number]
    if isinstance(value, Host):
        return value.array.view(numpy_dtype(dtype))
    memory = device.memory(value, dtype)
    return device.download(value, dtype) if memory is None else memory
