"""A bundle's functions, run by IREE.

    program = Program.load("model.pcp", communicator=comm)
    loss, *grads = program["grad"](*params, *data)

Arrays go in as numpy arrays or as `DeviceArray`s and come out as either, so
that training state can stay on the device. An array that a function donates is
consumed by the call: its buffer may hold the result.
"""

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from pcp.bundle import Bundle, Function, Manifest, Part, TensorSpec
from pcp.errors import (
    BundleError,
    ConfigError,
    RuntimeFault,
    UsageError,
    counted,
    let_go,
)
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.memory.dtypes import bits_dtype, numpy_dtype
from pcp.runtime.program import host_functions, host_processor, threads
from pcp.runtime.program.aliasing import Overlaps
from pcp.runtime.program.collective_imports import Imports
from pcp.runtime.program.devices import (
    Device,
    DeviceArray,
    available_drivers,
    close_at_exit,
    first_line,
    mlir_name,
    open_device,
)
from pcp.runtime.program.drawn_function import DrawnFunction
from pcp.runtime.program.host_collectives import Groups
from pcp.runtime.program.host_functions import Bindings
from pcp.runtime.program.stacks import (
    Host,
    Stack,
    Value,
    alone,
    holder,
    holders,
    in_copies,
    joined,
)

__all__ = [
    "BoundFunction",
    "Device",
    "DeviceArray",
    "Program",
    "available_drivers",
    "open_device",
]

_SAME_DRIVER = {"local-sync": "local-task"}
"""Drivers that run the modules of another driver."""


#: Arguments that an error about their number names.
MOST_NAMED = 8


class BoundFunction:
    """One function of a loaded program; calling it runs it, or its parts in turn."""

    def __init__(
        self,
        program: "Program",
        name: str,
        handle: Any,
        *,
        straight: Collection[str] = (),
    ) -> None:
        self.name = name
        self.signature: Function = program.manifest.function(name)
        self._program = program
        #: The parts in their order, each with what finds it in the module.
        self._calls: list[tuple[Part, Any]] = handle
        inputs, results = len(self.signature.inputs), len(self.signature.results)
        self._returns = self.signature.returns or range(inputs, inputs + results)
        #: The arguments that are read as rows of a stack and not by themselves.
        read = [number for part, _ in handle for number in part.inputs]
        self.stacked = frozenset(
            n for number in read if not isinstance(number, int) for n in number
        ).difference(read)
        self.donates = frozenset(self.signature.donates)
        self.overlaps = Overlaps(all(part.name in straight for part, _ in handle))

    def __call__(self, *arguments: Any, device_arrays: bool = False) -> Any:
        """Run on the arguments; one result, or a tuple of them.

        Arguments are numpy arrays, Python scalars, or DeviceArrays of the same
        device. Results are numpy arrays, or DeviceArrays on request.
        """
        return self._program._call(self, arguments, device_arrays)

    def release(self) -> None:
        """Release the module; calling the function is an error from now on."""
        self._calls = []

    def run(self, context: Any, arguments: Sequence[Value]) -> list[Value]:
        """The results of the arguments: buffer views, and rows of such."""
        device, values = self._program.device, list(arguments)
        for part, handle in self._calls:
            given = rt.VmVariantList(len(part.inputs))
            for number in part.inputs:
                if isinstance(number, int):
                    given.push_ref(alone(device, values[number]))
                else:
                    given.push_ref(joined(device, [values[n] for n in number]))
            made = rt.VmVariantList(part.results)
            context.invoke(handle, given, made)
            for i in range(part.results):
                view = made.get_as_object(i, rt.HalBufferView)
                rows = part.rows[i] if part.rows else 0
                values += Stack(device, view).rows(rows) if rows else [view]
        return [values[number] for number in self._returns]


class Program:
    """A loaded bundle. Make one with `Program.load`; index it by function."""

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        module: str,
        manifest: Manifest | None = None,
        host: Bindings | None = None,
    ) -> None:
        self.manifest: Manifest = manifest or bundle.manifest
        self.device = device
        self.module = module
        self._lock = threading.RLock()
        self._imports = Imports(device, self.manifest, host)
        try:
            code = rt.VmModule.copy_buffer(device.instance, bundle.module(module))
            hal = rt.create_hal_module(device.instance, device.hal)
            modules = [hal, self._imports.module(), code]
            self._context: Any = rt.VmContext(device.instance, modules)
        except BundleError:
            self._imports.close()
            raise
        except Exception as error:
            self._imports.close()
            raise BundleError(
                f"module {module!r} does not load on {device.uri}: {first_line(error)}"
            ) from error
        straight = frozenset(bundle.manifest.modules[module].straight)
        self._functions: dict[str, BoundFunction | DrawnFunction] = {
            name: DrawnFunction(self, name, signature)
            if signature.first
            else BoundFunction(
                self, name, _calls(code, name, signature), straight=straight
            )
            for name, signature in self.manifest.functions.items()
        }
        close_at_exit(self)

    @classmethod
    def load(
        cls,
        source: "str | Path | Bundle",
        device: "str | Device" = threads.LOCAL,
        *,
        module: str | None = None,
        communicator: Groups = None,
        member: str | None = None,
        host: Bindings | None = None,
    ) -> "Program":
        """Load a bundle, or the file of one, onto a device.

        Of a program that is spread over a mesh, `member` names the device of the mesh
        whose part to load; by default that of the communicator's rank. The parts of
        its arguments and results are those of `manifest.function(name)`'s shardings.

        `device` is "local", this machine's processor with the threads that the program
        wants (see `threads`), or one of IREE's. `module` names one of the bundle's
        modules; by default the first that the device's driver can run.
        `communicator` serves the collectives, or a dictionary from axes ("dp",
        "dp,tp") to communicators. `host` binds the functions that the program declares
        with `pcp.host`, by name; see `host_functions`. One that it calls and `host`
        lacks is a `ConfigError`.
        """
        bundle = source if isinstance(source, Bundle) else Bundle.read(source)
        manifest = bundle.manifest
        called = host_functions.declared(manifest.all_collectives())
        host_functions.check_called(called, host or {})
        if manifest.programs:
            member = member or _member_of(manifest, communicator)
            module = manifest.of_device(member).programs[member].module
            manifest = manifest.of_device(member)
        if isinstance(device, str):
            own_functions = manifest.functions.values()
            device = open_device(threads.device_for(device, own_functions))
        name = module or _module_for(bundle, device)
        _check_runs(bundle, name)
        own = host_functions.declared(manifest.collectives.values())
        host_functions.check_bound(own, host or {})
        program = cls(bundle, device, name, manifest, host)
        program.communicator = communicator
        return program

    @property
    def communicator(self) -> Groups:
        """The communicators of the collectives; set it again for a new group."""
        return self._imports.groups

    @communicator.setter
    def communicator(self, groups: Groups) -> None:
        with self._lock:
            self._imports.groups = groups

    @property
    def _recorder(self) -> Recorder | None:
        """The recorder of a trace; None without one."""
        return self._imports.recorder

    @_recorder.setter
    def _recorder(self, recorder: Recorder | None) -> None:
        with self._lock:
            self._imports.recorder = recorder

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions."""
        return tuple(self._functions)

    def __getitem__(self, name: str) -> BoundFunction | DrawnFunction:
        if self._context is None:
            raise UsageError("the program is closed")
        if name == f"{self.manifest.entry}_grad" and name not in self._functions:
            name = "grad"  # the name that `pcp-grad` alone gives
        if name not in self._functions:
            self.manifest.function(name)  # raises an error with the nearest name
        return self._functions[name]

    def to_device(self, array: NDArray, dtype: str | None = None) -> DeviceArray:
        """A copy of `array` on the device; `dtype` is MLIR's name for its type."""
        array = np.asarray(array)
        name = dtype or mlir_name(array.dtype)
        if array.dtype not in (numpy_dtype(name), bits_dtype(name)):
            raise UsageError(f"an array of {array.dtype} is not one of {name}")
        return DeviceArray(self.device, self.device.upload(array, name), name)

    def close(self) -> None:
        """Release the module. Arrays stay usable until the device closes."""
        with self._lock:
            self._imports.close()
            for function in self._functions.values():
                function.release()
            self._context = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, function: BoundFunction, arguments: Sequence[Any], keep: bool
    ) -> Any:
        try:
            return self._results(function, arguments, keep)
        except BaseException as error:
            let_go(error)  # frames of the error may outlive the device
            raise

    def _results(
        self, function: BoundFunction, arguments: Sequence[Any], keep: bool
    ) -> Any:
        signature = function.signature
        taken = self._take(function, arguments)
        with self._lock:
            made = self._invoke(function, taken, arguments)
            if keep:
                made = self._apart(made, function, arguments)
        arrays = [
            DeviceArray(self.device, value, spec.dtype)
            for value, spec in zip(made, signature.results, strict=True)
        ]
        values = tuple(arrays if keep else [array.numpy() for array in arrays])
        return values[0] if len(values) == 1 else values

    def _apart(
        self, values: Sequence[Value], function: BoundFunction, arguments: Sequence[Any]
    ) -> list[Value]:
        """The results, in memory apart from each other and from kept arguments."""
        kept = [
            holder(a.view)
            if isinstance(a, DeviceArray) and i not in function.donates
            else None
            for i, a in enumerate(arguments)
        ]
        held = holders(values)
        overlapping = function.overlaps.among(held, kept)
        return in_copies(self.device, values, {id(held[i]) for i in overlapping})

    def _invoke(
        self, function: BoundFunction, taken: list[Value], arguments: Sequence[Any]
    ) -> list[Value]:
        if self._context is None:
            raise UsageError("the program is closed")
        self._imports.begin()
        begun = time.monotonic()
        try:
            results = function.run(self._context, taken)
        except Exception as error:
            fault = self._imports.finish(failed=True)
            if fault is not None:
                raise fault from fault.__cause__
            raise RuntimeFault(
                f"{function.name} failed on {self.device.uri}: {first_line(error)}"
            ) from error
        finally:
            self._give_away(function, arguments)
        invoked = time.monotonic()
        fault = self._imports.finish()
        if self._recorder is not None:
            finished = time.monotonic()
            parts = [("invoke", begun, invoked), ("exchanges", invoked, finished)]
            self._recorder.span("program", function.name, begun, finished, {}, parts)
        if fault is not None:
            raise fault
        return results

    def _take(self, function: BoundFunction, arguments: Sequence[Any]) -> list[Value]:
        """The arguments on the device, each checked against its spec.

        One that the function reads in a stack alone is brought there with the others.
        """
        inputs = function.signature.inputs
        if len(arguments) != len(inputs):
            named = ", ".join(spec.name for spec in inputs[:MOST_NAMED])
            more = ", ..." if len(inputs) > MOST_NAMED else ""
            raise UsageError(
                f"{function.name} takes {counted(len(inputs), 'argument')} "
                f"({named}{more}), not {len(arguments)}"
            )
        held = Counter(id(a) for a in arguments if isinstance(a, DeviceArray))
        if any(held[id(arguments[i])] > 1 for i in function.donates):
            raise UsageError(f"{function.name}: a donated array is passed twice")
        return [
            self._value(function, index, spec, value)
            for index, (spec, value) in enumerate(zip(inputs, arguments, strict=True))
        ]

    def _value(
        self, function: BoundFunction, index: int, spec: TensorSpec, value: Any
    ) -> Value:
        if isinstance(value, DeviceArray):
            here = value.device is self.device
            if here and value.dtype == spec.dtype and value.shape == spec.shape:
                return value.view
        else:
            here = True
            if isinstance(value, bool | int | float | complex):
                value = np.asarray(value, numpy_dtype(spec.dtype))
            value = np.asarray(value)
            types = (numpy_dtype(spec.dtype), bits_dtype(spec.dtype))
            if value.dtype in types and value.shape == spec.shape:
                if index in function.stacked:
                    return Host(value, spec.dtype)
                return self.device.upload(value, spec.dtype)
        where = f"{function.name}: argument {index} ({spec.name})"
        if not here:
            raise UsageError(f"{where} lies on another device; copy it over")
        given, wanted = (f"{a.dtype}{list(a.shape)}" for a in (value, spec))
        raise UsageError(f"{where} takes {wanted}, not {given}")

    def _give_away(self, function: BoundFunction, arguments: Sequence[Any]) -> None:
        for index in function.signature.donates:
            if isinstance(array := arguments[index], DeviceArray):
                name = function.signature.inputs[index].name
                array.consume(f"donated to {function.name} as {name}")


def _member_of(manifest: Manifest, groups: Groups) -> str:
    """The device of the mesh that has the rank of the world's communicator."""
    world = groups.get("") if isinstance(groups, Mapping) else groups
    devices = manifest.partition_mesh().devices
    if world is None or world.world_size != len(devices):
        raise ConfigError(
            f"the program is spread over {', '.join(devices)}; say which part this is "
            "with member=..., or give a communicator with one rank for each"
        )
    return devices[world.rank]


def drivers_of(device: Device) -> set[str]:
    """The drivers whose modules a device runs."""
    return {device.driver, _SAME_DRIVER.get(device.driver, device.driver)}


def _module_for(bundle: Bundle, device: Device) -> str:
    wanted = drivers_of(device)
    fit = [n for n, m in bundle.manifest.modules.items() if m.driver in wanted]
    if fit:  # a module for another processor is taken only to be refused
        return next((n for n in fit if _runs(bundle, n)), fit[0])
    have = ", ".join(f"{n} ({m.driver})" for n, m in bundle.manifest.modules.items())
    raise ConfigError(
        f"no module for a {device.driver} device in the bundle; it holds "
        f"{have or 'none'}. Compile with `pcp-compile MODEL --target TARGET`"
    )


def _runs(bundle: Bundle, name: str) -> bool:
    module = bundle.manifest.modules.get(name)
    return module is None or host_processor.runs(module.target)


def _check_runs(bundle: Bundle, name: str) -> None:
    """Refuse code with instructions that the processor lacks, which would crash."""
    if not _runs(bundle, name):
        target = bundle.manifest.modules[name].target
        raise BundleError(
            f"module {name!r} is for {target}, and this processor is a "
            f"{host_processor.own()}: compile for that with pcp-compile --target"
        )


def _calls(module: Any, name: str, function: Function) -> list[tuple[Part, Any]]:
    """A function's parts with their handles; one that has none is its own."""
    inputs = tuple(range(len(function.inputs)))
    whole = Part(name=name, inputs=inputs, results=len(function.results))
    parts = function.parts or (whole,)
    return [(part, _lookup(module, part.name)) for part in parts]


def _lookup(module: Any, name: str) -> Any:
    handle = module.lookup_function(name)
    if handle is None:
        raise BundleError(f"the module lacks function {name!r} of its manifest")
    return handle
