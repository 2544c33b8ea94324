"""Host functions: declared and called by a program, bound by its process.

    program = Program.load("m.pcp", host={"scale": lambda x: 2 * x})

A call gives the function copies of its tensors as numpy arrays; the results must have
the shapes and types that the program declares. Calls are made one at a time, in the
program's order. A function that fails ends the program on every member of its group.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pcp.errors import (
    BundleError,
    ConfigError,
    HostFunctionFailed,
    counted,
    nearest,
)
from pcp.manifest import Collective
from pcp.runtime.memory.dtypes import numpy_dtype

HOST = "host"
"""The kind of an import that calls a host function."""

HostFunction = Callable[..., Any]
Bindings = Mapping[str, HostFunction]

#: A tensor's element type, as MLIR writes it, and shape.
Type = tuple[str, tuple[int, ...]]

_NUMBERS = bool | int | float | complex


@dataclass(frozen=True)
class Declaration:
    """A host function as the program declares it."""

    name: str
    takes: tuple[Type, ...]
    gives: tuple[Type, ...]

    @classmethod
    def of(cls, what: Collective) -> Self:
        """The declaration in an import of kind `HOST`."""
        said = what.attributes
        try:
            return cls(
                str(said["function"]),
                _types(said["dtypes"], said["shapes"]),
                _types(said["result_dtypes"], said["result_shapes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(
                f"an import of kind {HOST} says no function with its types: {said}"
            ) from error

    def __str__(self) -> str:
        takes, gives = (", ".join(map(_shown, t)) for t in (self.takes, self.gives))
        return f"@{self.name}({takes}) -> ({gives})"


def _types(dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[Type, ...]:
    return tuple((d, tuple(s)) for d, s in zip(dtypes, shapes, strict=True))


def _shown(type_: Type) -> str:
    dtype, shape = type_
    return f"{dtype}[{', '.join(map(str, shape))}]"


def declared(imports: Iterable[Collective]) -> dict[str, Declaration]:
    """The host functions among a program's imports, by name."""
    found = (Declaration.of(what) for what in imports if what.kind == HOST)
    return {one.name: one for one in found}


def check_bound(called: Mapping[str, Declaration], bound: Bindings) -> None:
    """`ConfigError` where a called function is not bound."""
    for name, declaration in called.items():
        if name not in bound:
            raise ConfigError(
                f"the program calls the host function {declaration}, and none is "
                f"bound to it: Program.load(..., host={{{name!r}: function}}), or "
                f"pcp run --host-function {name}=FILE.py:FUNCTION."
                + nearest(name, bound)
            )
        if not callable(bound[name]):
            kind = type(bound[name]).__name__
            raise ConfigError(f"host function {name!r} is bound to a {kind}")


def check_called(called: Mapping[str, Declaration], bound: Bindings) -> None:
    """`ConfigError` for a bound function that no device's program calls."""
    for name in bound:
        if name not in called:
            known = ", ".join(called) or "none"
            raise ConfigError(
                f"the program calls no host function {name!r} (it calls: {known})."
                + nearest(name, called)
            )


def run(
    function: HostFunction, what: Declaration, arrays: Sequence[NDArray]
) -> list[NDArray]:
    """The function's results on these arrays; `HostFunctionFailed` without them."""
    try:
        given = function(*arrays)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise HostFunctionFailed(
            f"host function @{what.name} raised {type(error).__name__}: {error} "
            f"({place.filename}:{place.lineno})"
        ) from error
    results = [] if given is None else [given]
    results = list(given) if isinstance(given, tuple | list) else results
    _require(what, len(results) == len(what.gives), counted(len(results), "value"))
    return [
        _result(what, i, value, type_)
        for i, (value, type_) in enumerate(zip(results, what.gives, strict=True))
    ]


def _result(what: Declaration, i: int, value: Any, type_: Type) -> NDArray:
    """A result as an array of the declared type; a Python number becomes one."""
    dtype, shape = numpy_dtype(type_[0]), type_[1]
    if isinstance(value, _NUMBERS):
        value = np.asarray(value, dtype)
    array = np.asarray(value)
    fits = array.dtype == dtype and array.shape == shape
    _require(what, fits, f"{array.dtype}{list(array.shape)} as result {i}")
    return array


def _require(what: Declaration, good: bool, gave: str) -> None:
    if not good:
        raise HostFunctionFailed(f"host function {what} gave {gave}")
