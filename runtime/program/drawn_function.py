"""`@init` of a bundle that describes it as data: first values, drawn on the host."""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from pcp.errors import UsageError
from pcp.function_body import First
from pcp.manifest import Function, TensorSpec
from pcp.runtime.program.drawing import first_values

INNER_INIT = "inner_init"


class _Program(Protocol):
    def __getitem__(self, name: str) -> Any: ...
    def to_device(self, array: np.ndarray, dtype: str | None = None) -> Any: ...


class DrawnFunction:
    """A function of a seed whose results the manifest describes; see `First`.

    It is called as a `BoundFunction`.
    """

    def __init__(self, program: _Program, name: str, signature: Function) -> None:
        self.name = name
        self.signature = signature
        self._program = program

    def __call__(self, *arguments: Any, device_arrays: bool = False) -> Any:
        """First values by a seed; one result, or a tuple of them.

        The seed is an integer of any kind, of which 64 bits count. Results are numpy
        arrays, or DeviceArrays on request: each goes to the device when it is drawn,
        so that the host never holds all of them.
        """
        seed, specs = _seed(self.name, arguments), self.signature.results
        made: dict[Any, Any] = {}
        for first, spec in zip(self.signature.first, specs, strict=True):
            if not first.from_parameters:
                value = _value(first, spec, seed)
                if device_arrays:
                    value = self._program.to_device(value, spec.dtype)
                made[spec.key] = value
        if len(made) < len(specs):
            made |= self._of_parameters(made, device_arrays)
        values = [made[t.key] for t in specs]
        return values[0] if len(values) == 1 else tuple(values)

    def _of_parameters(
        self, made: dict[Any, Any], device_arrays: bool
    ) -> dict[Any, Any]:
        """The results of `@inner_init` for these parameters."""
        function = self._program[INNER_INIT]
        needed = (made[t.key] for t in function.signature.inputs)
        given = function(*needed, device_arrays=device_arrays)
        rows = given if isinstance(given, tuple) else (given,)
        keys: Iterable[Any] = (t.key for t in function.signature.results)
        return {k: v for k, v in zip(keys, rows, strict=True) if k not in made}

    def release(self) -> None:
        """Nothing: the function has no arrays on a device."""


def _seed(name: str, arguments: tuple[Any, ...]) -> int:
    """The only argument, an integer; `UsageError` for anything else."""
    if len(arguments) != 1:
        raise UsageError(f"{name} takes 1 argument (seed), not {len(arguments)}")
    value = np.asarray(arguments[0])
    if value.shape or value.dtype.kind not in "iu":
        raise UsageError(
            f"{name}: argument 0 (seed) takes i64[], not {value.dtype}"
            f"{list(value.shape)}"
        )
    return int(value)


def _value(first: First, spec: TensorSpec, seed: int) -> np.ndarray:
    return first_values(
        first.init,
        spec.dtype,
        spec.shape,
        seed=seed,
        stream=first.stream,
        whole=first.whole,
        start=first.start,
    )
