"""A bundle's functions, run by IREE: the only file that imports `iree.runtime`.

    program = Program.load("model.pcp", communicator=comm)
    loss, *grads = program["grad"](*params, *data)

Arrays go in as numpy arrays or as `DeviceArray`s and come out as either, so
that training state can stay on the device. Collectives inside a function are
imports with fences: the import returns at once, a thread does the exchange,
and the program goes on until it needs the result.

IREE wants arrays released before contexts, contexts before devices; `close`,
and the end of the interpreter, keep that order.
"""

import atexit
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from pcp.bundle import Bundle, Function, Manifest, TensorSpec
from pcp.errors import BundleError, ConfigError, RuntimeFault, Timeout, UsageError
from pcp.runtime.dtypes import bits_dtype, numpy_dtype
from pcp.runtime.exchange import Groups, group_for, launch, result_shape

_USAGE = int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING)
_LOCAL = int(rt.MemoryType.DEVICE_LOCAL)
_STAGING = int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE)
_EXCHANGE_THREADS = 4
_SAME_DRIVER = {"local-sync": "local-task"}
"""Drivers that run modules made for another one."""

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


class Device:
    """An open device; arrays and programs on it keep it alive."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.driver = uri.partition("://")[0]
        known = rt.query_available_drivers()
        if self.driver not in known:
            raise ConfigError(
                f"no driver {self.driver!r} here; there are {', '.join(known)}"
            )
        try:
            self.instance = rt.VmInstance()
            self.hal = rt.get_driver(self.driver).create_device_by_uri(uri)
        except Exception as error:
            raise ConfigError(
                f"device {uri!r} cannot be opened: {_first_line(error)}"
            ) from error

    def upload(self, array: NDArray, dtype: str) -> Any:
        """A buffer view with a copy of `array`."""
        bits = np.ascontiguousarray(array).view(bits_dtype(dtype))
        return self.hal.allocator.allocate_buffer_copy(
            memory_type=_LOCAL,
            allowed_usage=_USAGE,
            device=self.hal,
            buffer=bits.reshape(array.shape),
            element_type=int(_ELEMENTS[dtype]),
        )

    def download(self, view: Any, dtype: str) -> NDArray:
        """A copy of a buffer view's contents."""
        source = view.get_buffer()
        shape, bits = list(view.shape), bits_dtype(dtype)
        if not _mappable(source):
            source = self._to_staging(source)
        flat = source.map().asarray(shape, bits)
        return np.array(flat).view(numpy_dtype(dtype)).reshape(shape)

    def overwrite(self, view: Any, array: NDArray, dtype: str) -> None:
        """Put `array` into a buffer view, and return when it is there."""
        target = view.get_buffer()
        bits = np.ascontiguousarray(array).view(bits_dtype(dtype))
        if _mappable(target):
            room = target.map().asarray(list(view.shape), bits_dtype(dtype))
            np.copyto(room, bits.reshape(view.shape))
        else:
            staged = self.upload(array, dtype)
            self._copy(staged.get_buffer(), target)

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


def _mappable(buffer: Any) -> bool:
    visible = int(rt.MemoryType.HOST_VISIBLE)
    mapping = int(rt.BufferUsage.MAPPING_SCOPED)
    return bool(buffer.memory_type() & visible) and bool(
        buffer.allowed_usage() & mapping
    )


class DeviceArray:
    """A tensor that stays on its device; `numpy()` copies it out."""

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
        """IREE's handle; UsageError once the array was given away."""
        if self._view is None:
            raise UsageError(
                f"this {self.dtype}{list(self.shape)} array was {self._gone}; "
                f"use the result that took its place"
            )
        return self._view

    def numpy(self) -> NDArray:
        """A copy in host memory."""
        return self.device.download(self.view, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def consume(self, how: str) -> None:
        """Let go of the buffer; later use is an error that says `how`."""
        self._view, self._gone = None, how


class _Job:
    """One exchange a running function asked for."""

    __slots__ = ("finished", "posted")

    def __init__(self) -> None:
        self.posted = threading.Event()
        self.finished = threading.Event()


class _Imports:
    """The module `pcp_rt` that compiled functions import.

    Calls of one import are posted in program order, which is the same on all
    members; different imports do not wait for each other.
    """

    def __init__(self, device: Device, manifest: Manifest) -> None:
        self.groups: Groups = None
        self._device = device
        self._manifest = manifest
        self._pool = ThreadPoolExecutor(_EXCHANGE_THREADS, "pcp-exchange")
        self._last: dict[str, _Job] = {}
        self._jobs: list[_Job] = []
        self._fault: BaseException | None = None

    def module(self) -> Any:
        """The Python module with one export per collective of the manifest."""
        interface = rt.PyModuleInterface("pcp_rt", lambda _: self)
        for name, what in self._manifest.collectives.items():
            takes = int(what.attributes.get("operands", 1))
            convention = f"0{'r' * takes}rr_r"
            interface.export(name, convention, self._entry(name))
        return interface.create()

    def begin(self) -> None:
        """A function is about to run."""
        self._fault = None
        self._jobs.clear()
        self._last.clear()

    def finish(self) -> BaseException | None:
        """Wait for every exchange of the call; what went wrong first, if it did."""
        for job in self._jobs:
            job.finished.wait()
        self._jobs.clear()
        return self._fault

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _entry(self, name: str) -> Callable[..., Any]:
        def call(state: "_Imports", *refs: Any) -> Any:
            return state._call(name, refs)

        return call

    def _call(self, name: str, refs: Sequence[Any]) -> Any:
        """An import is called: answer at once, exchange in the background."""
        what = self._manifest.collectives[name]
        *operands, wait, signal = refs
        view = operands[0].deref(rt.HalBufferView)
        ready = wait.deref(rt.HalFence) if wait.isinstance(rt.HalFence) else None
        done = signal.deref(rt.HalFence) if signal.isinstance(rt.HalFence) else None
        try:
            comm = group_for(self.groups, name, what, self._manifest)
            shape = result_shape(what, comm.world_size)
        except Exception as error:
            self._fault = self._fault or error
            raise
        result = self._device.upload(
            np.empty(shape, numpy_dtype(what.dtype)), what.dtype
        )
        job, before = _Job(), self._last.get(name)
        self._last[name] = job
        self._jobs.append(job)

        def settle(error: BaseException | None) -> None:
            if error is not None:
                self._fault = self._fault or error
            if done is not None:
                done.fail(_first_line(error)) if error is not None else done.signal()
            job.finished.set()

        def deliver(pending: Any) -> None:
            try:
                self._device.overwrite(
                    result,
                    pending.result().astype(numpy_dtype(what.dtype), copy=False),
                    what.dtype,
                )
            except BaseException as error:
                settle(error)
            else:
                settle(None)

        def run() -> None:
            try:
                if before is not None:
                    before.posted.wait()
                if ready is not None:
                    ready.wait()
                array = self._device.download(view, what.dtype)
                pending = launch(comm, what, array, name)
                pending.add_done_callback(lambda p: self._pool.submit(deliver, p))
            except BaseException as error:
                settle(error)
            finally:
                job.posted.set()

        self._pool.submit(run)
        return result.ref


class BoundFunction:
    """One function of a loaded program; calling it runs it."""

    def __init__(self, program: "Program", name: str, handle: Any) -> None:
        self.name = name
        self.signature: Function = program.manifest.function(name)
        self._program = program
        self._handle = handle

    def __call__(self, *arguments: Any, device_arrays: bool = False) -> Any:
        """Run on the arguments; one result, or a tuple of them.

        Arguments are numpy arrays, Python scalars, or DeviceArrays of the same
        device. Results are numpy arrays, or DeviceArrays on request.
        """
        return self._program._call(self, arguments, device_arrays)


class Program:
    """A loaded bundle. Make one with `Program.load`; index it by function."""

    def __init__(self, bundle: Bundle, device: Device, module: str) -> None:
        self.manifest: Manifest = bundle.manifest
        self.device = device
        self.module = module
        self._lock = threading.RLock()
        self._imports = _Imports(device, self.manifest)
        try:
            code = rt.VmModule.copy_buffer(device.instance, bundle.module(module))
            hal = rt.create_hal_module(device.instance, device.hal)
            modules = [hal, self._imports.module(), code]
            self._context = rt.VmContext(device.instance, modules)
        except BundleError:
            raise
        except Exception as error:
            raise BundleError(
                f"module {module!r} does not load on {device.uri}: {_first_line(error)}"
            ) from error
        self._functions = {
            name: BoundFunction(self, name, _lookup(code, name))
            for name in self.manifest.functions
        }
        _programs.add(self)

    @classmethod
    def load(
        cls,
        source: "str | Path | Bundle",
        device: "str | Device" = "local-task",
        *,
        module: str | None = None,
        communicator: Groups = None,
    ) -> "Program":
        """Load a bundle, or the file of one, onto a device.

        `module` names one of the bundle's modules; by default the first that
        the device's driver can run. `communicator` serves the collectives, or
        a dictionary from axes ("dp", "dp,tp") to communicators.
        """
        bundle = source if isinstance(source, Bundle) else Bundle.read(source)
        if isinstance(device, str):
            device = open_device(device)
        program = cls(bundle, device, module or _module_for(bundle, device))
        program.communicator = communicator
        return program

    @property
    def communicator(self) -> Groups:
        """Who takes part in the collectives; set it again for a new group."""
        return self._imports.groups

    @communicator.setter
    def communicator(self, groups: Groups) -> None:
        with self._lock:
            self._imports.groups = groups

    @property
    def functions(self) -> tuple[str, ...]:
        """Names to index with."""
        return tuple(self._functions)

    def __getitem__(self, name: str) -> BoundFunction:
        if name not in self._functions:
            self.manifest.function(name)  # raises, naming the nearest
        return self._functions[name]

    def to_device(self, array: NDArray, dtype: str | None = None) -> DeviceArray:
        """A copy of `array` on the device; `dtype` is MLIR's name for its type."""
        array = np.asarray(array)
        name = dtype or _mlir_name(array.dtype)
        if array.dtype not in (numpy_dtype(name), bits_dtype(name)):
            raise UsageError(f"an array of {array.dtype} is not one of {name}")
        return DeviceArray(self.device, self.device.upload(array, name), name)

    def close(self) -> None:
        """Let go of the module. Arrays stay usable until the device goes."""
        with self._lock:
            self._imports.close()
            self._functions.clear()
            self._context = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, function: BoundFunction, arguments: Sequence[Any], keep: bool
    ) -> Any:
        signature = function.signature
        views = self._take(function, arguments)
        with self._lock:
            if self._context is None:
                raise UsageError("the program is closed")
            results = self._invoke(function, views, arguments)
            arrays = [
                DeviceArray(
                    self.device, results.get_as_object(i, rt.HalBufferView), s.dtype
                )
                for i, s in enumerate(signature.results)
            ]
        values = tuple(arrays if keep else [array.numpy() for array in arrays])
        return values[0] if len(values) == 1 else values

    def _invoke(
        self, function: BoundFunction, views: list[Any], arguments: Sequence[Any]
    ) -> Any:
        given = rt.VmVariantList(len(views))
        for view in views:
            given.push_ref(view)
        results = rt.VmVariantList(len(function.signature.results))
        self._imports.begin()
        try:
            self._context.invoke(function._handle, given, results)
        except Exception as error:
            fault = self._imports.finish()
            if fault is not None:
                raise fault from None
            raise RuntimeFault(
                f"{function.name} failed on {self.device.uri}: {_first_line(error)}"
            ) from error
        finally:
            self._give_away(function, arguments)
        if (fault := self._imports.finish()) is not None:
            raise fault
        return results

    def _take(self, function: BoundFunction, arguments: Sequence[Any]) -> list[Any]:
        """The buffer views of the arguments, each checked against its spec."""
        inputs = function.signature.inputs
        if len(arguments) != len(inputs):
            raise UsageError(
                f"{function.name} takes {len(inputs)} arguments, not {len(arguments)}"
            )
        donated = [arguments[i] for i in function.signature.donates]
        held = [a for a in arguments if isinstance(a, DeviceArray)]
        if any(sum(h is d for h in held) > 1 for d in donated):
            raise UsageError(f"{function.name}: a donated array is passed twice")
        return [
            self._view(function.name, index, spec, value)
            for index, (spec, value) in enumerate(zip(inputs, arguments, strict=True))
        ]

    def _view(self, function: str, index: int, spec: TensorSpec, value: Any) -> Any:
        where = f"{function}: argument {index} ({spec.name})"
        if isinstance(value, DeviceArray):
            given = f"{value.dtype}{list(value.shape)}"
            fits = value.dtype == spec.dtype and value.shape == spec.shape
            if value.device is not self.device:
                raise UsageError(f"{where} lies on another device; copy it over")
        else:
            if isinstance(value, bool | int | float | complex):
                value = np.asarray(value, numpy_dtype(spec.dtype))
            value = np.asarray(value)
            given = f"{value.dtype}{list(value.shape)}"
            types = (numpy_dtype(spec.dtype), bits_dtype(spec.dtype))
            fits = value.dtype in types and value.shape == spec.shape
        if not fits:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            raise UsageError(f"{where} takes {wanted}, not {given}")
        if isinstance(value, DeviceArray):
            return value.view
        return self.device.upload(value, spec.dtype)

    def _give_away(self, function: BoundFunction, arguments: Sequence[Any]) -> None:
        for index in function.signature.donates:
            if isinstance(array := arguments[index], DeviceArray):
                name = function.signature.inputs[index].name
                array.consume(f"donated to {function.name} as {name}")


def open_device(uri: str = "local-task") -> Device:
    """The device of this URI; the same one while somebody uses it."""
    with _devices_lock:
        device = _devices.get(uri)
        if device is None:
            device = _devices[uri] = Device(uri)
        return device


def available_drivers() -> dict[str, list[str]]:
    """Devices by driver, for diagnostics; a driver that cannot start has none."""
    found: dict[str, list[str]] = {}
    for driver in rt.query_available_drivers():
        try:
            devices = rt.get_driver(driver).query_available_devices()
            found[driver] = [str(d.get("name") or d.get("path")) for d in devices]
        except Exception:
            found[driver] = []
    return found


def _module_for(bundle: Bundle, device: Device) -> str:
    wanted = {device.driver, _SAME_DRIVER.get(device.driver, device.driver)}
    for name, module in bundle.manifest.modules.items():
        if module.driver in wanted:
            return name
    have = ", ".join(f"{n} ({m.driver})" for n, m in bundle.manifest.modules.items())
    raise ConfigError(
        f"no module for a {device.driver} device in the bundle; it holds "
        f"{have or 'none'}. Compile with `pcp-compile MODEL --target TARGET`"
    )


def _lookup(module: Any, name: str) -> Any:
    handle = module.lookup_function(name)
    if handle is None:
        raise BundleError(f"the module lacks function {name!r} of its manifest")
    return handle


def _mlir_name(dtype: np.dtype) -> str:
    for name in _ELEMENTS:
        if numpy_dtype(name) == dtype:
            return name
    raise UsageError(f"no element type for arrays of {dtype}")


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def _shut_down() -> None:
    """Arrays, then contexts, then devices: any other order crashes at exit."""
    for array in list(_arrays):
        array.consume("released at the end of the process")
    for program in list(_programs):
        program.close()
    gc.collect()
    _devices.clear()


_arrays: "weakref.WeakSet[DeviceArray]" = weakref.WeakSet()
_programs: "weakref.WeakSet[Program]" = weakref.WeakSet()
_devices: "weakref.WeakValueDictionary[str, Device]" = weakref.WeakValueDictionary()
_devices_lock = threading.Lock()
atexit.register(_shut_down)

__all__ = [
    "BoundFunction",
    "Device",
    "DeviceArray",
    "Program",
    "Timeout",
    "available_drivers",
    "open_device",
]
