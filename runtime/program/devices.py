"""Devices, and the arrays on them that are a program's state.

This file and its two users, `collective_imports` and `executor`, are the only ones that
import IREE's runtime. IREE wants arrays released before contexts, contexts before
devices; at the end of the interpreter this file keeps that order.
"""

import atexit
import gc
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import iree.runtime as rt
import numpy as np
from iree.runtime._binding import create_hal_driver
from numpy.typing import NDArray

from pcp.errors import ConfigError, UsageError
from pcp.runtime.memory.dtypes import bits_dtype, numpy_dtype
from pcp.runtime.memory.shared_segment import address
from pcp.runtime.program import threads
from pcp.runtime.program.stacks import Row
from pcp.runtime.transport import mover

_USAGE = int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING)
_LOCAL = int(rt.MemoryType.DEVICE_LOCAL)
_VISIBLE = int(rt.MemoryType.HOST_VISIBLE)
_MAPPING = int(rt.BufferUsage.MAPPING_SCOPED)
_ON_HOST = (threads.ONE_THREAD, threads.TASKS)
"""Drivers that compute in the memory of this process."""
_ALIGNED = 64
"""Bytes; IREE's loops load so much at once."""
_STAGING = int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE)

_ELEMENTS = {
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f32": rt.HalElementType.FLOAT_32,
    "f64": rt.HalElementType.FLOAT_64,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "f8E5M2": rt.HalElementType.FLOAT_8_E5M2,
    "f8E4M3FNUZ": rt.HalElementType.FLOAT_8_E4M3_FNUZ,
    "f8E5M2FNUZ": rt.HalElementType.FLOAT_8_E5M2_FNUZ,
    "i1": rt.HalElementType.BOOL_8,
    "complex<f32>": rt.HalElementType.COMPLEX_64,
    "complex<f64>": rt.HalElementType.COMPLEX_128,
    **{f"i{n}": getattr(rt.HalElementType, f"SINT_{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": getattr(rt.HalElementType, f"UINT_{n}") for n in (8, 16, 32, 64)},
}


#: The same, of what a function gives: its integers have no sign there.
_NAMES = {
    **{int(getattr(rt.HalElementType, f"INT_{n}")): f"i{n}" for n in (8, 16, 32, 64)},
    **{int(element): name for name, element in _ELEMENTS.items()},
}


# A step's buffers are those of the step before: without a cache the system takes
# them back and zeroes them again each time. Measured on a GPT of width 256: 18 % of
# the step. On an H100, where the driver's own pool was the other choice, 11 % of the
# step of GPT-2 and 40 % of a small one. Only where it was measured.
_ALLOCATORS = {name: ["caching"] for name in ("local-sync", "local-task", "cuda")}
_COUNT = "--task_topology_group_count"  # threads that are bound to no core
_FLAGS = {"cuda": ["--cuda_async_allocations=false"]}


class DeviceContext(Protocol):
    """An object with a context of a device."""

    def close(self) -> None:
        """Release the context."""
        ...


class Device:
    """An open device. IREE's objects for it stay open until the process ends.

    Without `caching` its allocator gives buffers back at once, and its statistics
    count those in use.
    """

    def __init__(self, uri: str, *, caching: bool = True) -> None:
        self.uri = uri
        self.driver = uri.partition("://")[0]
        known = rt.query_available_drivers()
        if self.driver not in known:
            raise ConfigError(
                f"no driver {self.driver!r} here; there are {', '.join(known)}"
            )
        try:
            if flags := _FLAGS.get(self.driver):
                rt.flags.parse_flags(*flags)
            self.instance, self.hal = _shared(uri) if caching else _opened(uri, None)
            # No array is left on the device: the allocator releases its cache, too.
            weakref.finalize(self, self.hal.allocator.trim).atexit = False
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"device {uri!r} cannot be opened: {first_line(error)}"
            ) from error

    def upload(self, array: NDArray, dtype: str) -> Any:
        """A buffer view with a copy of `array`."""
        bits = np.ascontiguousarray(array).view(bits_dtype(dtype))
        return self.hal.allocator.allocate_buffer_copy(
            memory_type=_LOCAL,
            allowed_usage=_USAGE,
            device=self.hal,
            buffer=bits.reshape(array.shape),
            element_type=int(_ELEMENTS[dtype]),  # pyright: ignore[reportArgumentType]
        )

    def unfilled(self, shape: Sequence[int], dtype: str) -> Any:
        """A buffer view with memory that nothing was written to."""
        nbytes = math.prod(shape) * bits_dtype(dtype).itemsize
        buffer = self.hal.allocator.allocate_buffer(
            memory_type=_LOCAL, allowed_usage=_USAGE, allocation_size=nbytes
        )
        return rt.HalBufferView(buffer, list(shape), int(_ELEMENTS[dtype]))

    def element(self, view: Any) -> str:
        """MLIR's name of a buffer view's element type."""
        return _NAMES[int(view.element_type)]

    def over(self, array: NDArray, dtype: str) -> Any | None:
        """A buffer view of an array's own memory, which it keeps; None if it cannot.

        The array is C-contiguous, and not small.
        """
        if self.driver not in _ON_HOST or address(array) % _ALIGNED:
            return None
        lent = mover.lend(array.reshape(-1).view(np.uint8))
        if lent is None:
            return None
        octets = self.hal.from_dlpack_capsule(lent).get_buffer()
        return rt.HalBufferView(octets, list(array.shape), int(_ELEMENTS[dtype]))

    def memory(self, view: Any, dtype: str) -> NDArray | None:
        """A buffer view's own memory as an array; None if the host cannot reach it."""
        buffer = view.get_buffer()
        if not mappable(buffer):
            return None
        bits = buffer.map().asarray(list(view.shape), bits_dtype(dtype))
        return bits.view(numpy_dtype(dtype))

    def download(
        self, view: Any, dtype: str, empty: Callable[..., NDArray] = np.empty
    ) -> NDArray:
        """A copy of a buffer view's contents, in memory of this kind."""
        source = view.get_buffer()
        shape, bits = list(view.shape), bits_dtype(dtype)
        if not mappable(source):
            source = self._to_staging(source)
        copy = empty(shape, bits)
        np.copyto(copy, source.map().asarray(shape, bits))
        return copy.view(numpy_dtype(dtype))

    def overwrite(self, view: Any, array: NDArray, dtype: str) -> None:
        """Put `array` into a buffer view, and return when it is there."""
        target = view.get_buffer()
        bits = np.ascontiguousarray(array).view(bits_dtype(dtype))
        if mappable(target):
            room = target.map().asarray(list(view.shape), bits_dtype(dtype))
            np.copyto(room, bits.reshape(view.shape))
        else:
            staged = self.upload(array, dtype)
            self._copy(staged.get_buffer(), target)

    def duplicate(self, view: Any, dtype: str) -> Any:
        """A buffer view with memory of its own and the same contents."""
        return self.upload(self.download(view, dtype), dtype)

    def _to_staging(self, source: Any) -> Any:
        host = self.hal.allocator.allocate_buffer(
            memory_type=_STAGING,
            allowed_usage=int(
                rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED
            ),
            allocation_size=source.byte_length(),
        )
        self._copy(source, host)
        return host

    def _copy(self, source: Any, target: Any) -> None:
        semaphore = self.hal.create_semaphore(0)
        done = rt.HalFence.create_at(semaphore, 1)
        self.hal.queue_copy(
            source,
            target,
            wait_semaphores=rt.HalFence.create_at(semaphore, 0),
            signal_semaphores=done,
        )
        done.wait()


def mappable(buffer: Any) -> bool:
    """Whether the host can read and write the buffer where it lies."""
    return bool(buffer.memory_type() & _VISIBLE and buffer.allowed_usage() & _MAPPING)


class DeviceArray:
    """A tensor that stays on its device; `numpy()` copies it out.

    No two of them share memory: a call that writes to a donated array
    (`Function.donates`) changes no other.
    """

    __slots__ = ("__weakref__", "_gone", "_view", "device", "dtype", "shape")

    def __init__(self, device: Device, view: Any, dtype: str) -> None:
        self.device = device
        self.dtype = dtype
        """MLIR's name of the element type."""
        self.shape: tuple[int, ...] = tuple(view.shape)
        self._view = view
        self._gone = ""
        _arrays.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return (
            int(np.prod(self.shape, dtype=np.int64)) * bits_dtype(self.dtype).itemsize
        )

    @property
    def view(self) -> Any:
        """IREE's handle, or a row of one; UsageError once the array was donated."""
        if self._view is None:
            raise UsageError(
                f"this {self.dtype}{list(self.shape)} array was {self._gone}; "
                f"use the result that took its place"
            )
        return self._view

    def numpy(self) -> NDArray:
        """A copy in host memory."""
        view = self.view
        if isinstance(view, Row):
            return view.numpy()
        return self.device.download(view, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def consume(self, how: str) -> None:
        """Release the buffer; later use is an error with the reason `how`."""
        self._view, self._gone = None, how


def open_device(uri: str = "local-task") -> Device:
    """The device of this URI; the same one while it is in use."""
    with _devices_lock:
        device = _devices.get(uri)
        if device is None:
            device = _devices[uri] = Device(uri)
        return device


@cache
def _shared(uri: str) -> tuple[Any, Any]:
    """The device that is opened once, with an allocator that keeps buffers."""
    return _opened(uri, _ALLOCATORS.get(uri.partition("://")[0]))


def _opened(uri: str, allocators: Any) -> tuple[Any, Any]:
    """IREE's registry of types and device, which stay until the process ends.

    Arrays on a device must be released before it. But Python frees objects in a cycle,
    such as an error with its frames, in any order.
    """
    driver = _driver(uri)
    # The call takes names; the wheel's stub has objects.
    hal = driver.create_device_by_uri(_address(uri), allocators=allocators)
    _kept.append(handle := (rt.VmInstance(), hal))
    return handle


def _driver(uri: str) -> Any:
    """IREE's driver; one with a number of threads is made for that device alone."""
    name = uri.partition("://")[0]
    if name != threads.TASKS or not (count := threads.asked(uri)):
        return rt.get_driver(name)
    rt.flags.parse_flags(f"{_COUNT}={count}")
    try:
        return create_hal_driver(name)
    finally:
        rt.flags.parse_flags(f"{_COUNT}=0")


def available_drivers() -> dict[str, list[str]]:
    """Devices by driver, for diagnostics; a driver that cannot start has no devices."""
    found: dict[str, list[str]] = {}
    for driver in rt.query_available_drivers():
        try:
            devices = rt.get_driver(driver).query_available_devices()
            found[driver] = [str(d.get("name") or d.get("path")) for d in devices]
        except Exception:
            found[driver] = []
    return found


def _address(uri: str) -> str:
    """The device as IREE's driver finds it: Vulkan's knows identifiers, no numbers."""
    driver, _, place = uri.partition("://")
    if driver == threads.TASKS:
        return driver
    if driver != "vulkan" or (place and not place.isdecimal()):
        return uri
    found = rt.get_driver(driver).query_available_devices()
    if place and int(place) >= len(found):
        names = "; ".join(f"{driver}://{i} is {d['name']}" for i, d in enumerate(found))
        raise ConfigError(f"no device {uri!r} here; {names or 'there is none'}")
    if found and "llvmpipe" in found[int(place or 0)]["name"]:
        _warn_of_software(uri)
    return f"{driver}://{found[int(place)]['path']}" if place else uri


def _warn_of_software(uri: str) -> None:
    """Mesa's LP_MAX_TGSI_LOOP_ITERATIONS: a shader's loops have 65,535 turns in all."""
    warnings.warn(
        f"{uri} is Mesa's llvmpipe, in software: it ends the loops of a kernel after "
        "65,535 turns in all, so sums and scatters of more are wrong. "
        "Compute on a GPU, or on the CPU: --target cpu:host --device local-task",
        RuntimeWarning,
        stacklevel=2,
    )


def mlir_name(dtype: np.dtype) -> str:
    """MLIR's name of a numpy type."""
    for name in _ELEMENTS:
        if numpy_dtype(name) == dtype:
            return name
    raise UsageError(f"no element type for arrays of {dtype}")


def first_line(error: BaseException | None) -> str:
    """The message of an error of IREE, without its back trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def close_at_exit(thing: DeviceContext) -> None:
    """Close `thing` before the devices at exit, unless it is freed by then."""
    _contexts.add(thing)


def _shut_down() -> None:
    """Arrays, then contexts, then devices: any other order crashes at exit."""
    for array in list(_arrays):
        array.consume("released at the end of the process")
    for context in list(_contexts):
        context.close()
    gc.collect()
    _devices.clear()
    _shared.cache_clear()
    _kept.clear()


_arrays: "weakref.WeakSet[DeviceArray]" = weakref.WeakSet()
_contexts: "weakref.WeakSet[DeviceContext]" = weakref.WeakSet()
_devices: "weakref.WeakValueDictionary[str, Device]" = weakref.WeakValueDictionary()
_devices_lock = threading.Lock()
_kept: list[tuple[Any, Any]] = []
atexit.register(_shut_down)
