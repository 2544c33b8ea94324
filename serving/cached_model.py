"""A program of a decoder on one device, with its parameters and the slots' caches.

The program is one of `pcp.from_hf(DIR, phases=..., context=...)`: functions
`prefill_<rows>_<context>` and `decode_<rows>_<context>`, whose caches are state. A
slot's cache is its arrays on the device; which slots a call computes is whose arrays it
takes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcp.errors import BundleError
from pcp.manifest import Manifest
from pcp.runtime.program.executor import DeviceArray, Program

_ROWS_OF_A_CALL = 16
_NAME = re.compile(r"(prefill|decode)_(\d+)_(\d+)")


@dataclass(frozen=True)
class Function:
    """A function of the program: for how many rows, over how many positions."""

    kind: str
    rows: int
    context: int

    @property
    def name(self) -> str:
        """In the bundle."""
        return f"{self.kind}_{self.rows}_{self.context}"


@dataclass(frozen=True)
class Shapes:
    """What a program can compute: its functions by size, positions, vocabulary."""

    prefill: tuple[Function, ...]
    decode: tuple[Function, ...]
    context: int
    vocabulary: int

    @classmethod
    def of(cls, manifest: Manifest) -> "Shapes":
        """Those of a bundle; `BundleError` where it is none of a decoder."""
        found: dict[str, list[Function]] = {"prefill": [], "decode": []}
        for name in manifest.functions:
            if match := _NAME.fullmatch(name):
                function = Function(match[1], int(match[2]), int(match[3]))
                found[function.kind].append(function)
        if not all(found.values()):
            raise BundleError(
                "the bundle is none to serve: it has no functions prefill_* and "
                "decode_*; make its program with pcp.from_hf(DIR, phases=[...])"
            )
        any_ = manifest.functions[found["prefill"][0].name]
        context = any_.inputs[any_.inputs_of("state")[0]].shape[1]
        vocabulary = any_.results[0].shape[0]
        by_size = {
            k: sorted(f, key=lambda f: (f.rows, f.context)) for k, f in found.items()
        }
        return cls(
            tuple(by_size["prefill"]), tuple(by_size["decode"]), context, vocabulary
        )

    def fitting(self, kind: str, rows: int, context: int, most: int = 0) -> Function:
        """The smallest function for so many rows, or the widest for as many as it can.

        `most` is how many rows may be used at most (0: any number).
        """
        functions = self.prefill if kind == "prefill" else self.decode
        long = [f for f in functions if f.context >= context]
        long = [f for f in long if not most or f.rows <= most]
        enough = [f for f in long if f.rows >= rows]
        if enough:
            return enough[0]
        widest = max(f.rows for f in long)
        return next(f for f in long if f.rows == widest)

    def lengths(self, count: int) -> list[int]:
        """Rows of the prefill calls for so many tokens, those that are full first.

        A call costs its rows, of which what no token fills is lost, and what
        `_ROWS_OF_A_CALL` more would.
        """
        sizes = sorted({f.rows for f in self.prefill})
        enough = next((size for size in sizes if size >= count), None)
        less = max((size for size in sizes if size < count), default=None)
        whole = None if enough is None else [enough]
        if less is None:
            return whole or []
        parts = [less, *self.lengths(count - less)]
        return parts if whole is None or _cost(parts) < _cost(whole) else whole


def _cost(lengths: Sequence[int]) -> int:
    return sum(lengths) + _ROWS_OF_A_CALL * len(lengths)


@dataclass(frozen=True)
class Call:
    """One call of a function.

    `places` of a decode are the positions of its rows; of a prefill the first position
    and how many of the tokens count. `wanted` is whether somebody looks at the logits.
    """

    function: Function
    slots: tuple[int, ...]
    tokens: tuple[int, ...]
    places: tuple[int, ...]
    wanted: bool = True


class CachedModel:
    """Runs calls. Its arrays are on the program's device.

    Of a program that is spread over a mesh it has the parts of one member.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, np.ndarray], slots: int
    ) -> None:
        self.program, self.slots = program, slots
        shapes = Shapes.of(program.manifest)
        first = program.manifest.function(shapes.prefill[0].name)
        self._names = [
            spec.name for spec in first.inputs if spec.role in ("frozen", "param")
        ]
        self._parameters: list[DeviceArray] = []
        self.take(weights)
        self._kinds = [spec for spec in first.inputs if spec.role == "state"]
        self.caches: list[list[DeviceArray]] = [[] for _ in range(slots)]
        for slot in range(slots):
            self.clear(slot)

    def take(self, weights: Mapping[str, np.ndarray]) -> None:
        """Compute with these weights from now on; what caches hold is of the old."""
        self._parameters = [self.program.to_device(weights[n]) for n in self._names]

    @property
    def weight_bytes(self) -> int:
        """Of the parameters that this device holds."""
        return sum(array.nbytes for array in self._parameters)

    @property
    def cache_bytes(self) -> int:
        """Of the caches of all slots."""
        return sum(array.nbytes for arrays in self.caches for array in arrays)

    def clear(self, slot: int) -> None:
        """Fill a slot's cache with zeros."""
        self.caches[slot] = [
            self.program.to_device(np.zeros(spec.shape, np.float32), spec.dtype)
            for spec in self._kinds
        ]

    def run(self, call: Call) -> np.ndarray:
        """The logits of a call, [rows, V]; of a prefill [1, V]. V may be a part."""
        taken = [array for slot in call.slots for array in self.caches[slot]]
        logits, *kept = self.program[call.function.name](
            *self._parameters, *taken, *self._data(call), device_arrays=True
        )
        each = len(self._kinds)
        for i, slot in enumerate(call.slots):
            self.caches[slot] = kept[i * each : (i + 1) * each]
        return logits.numpy().reshape(-1, logits.shape[-1])

    def _data(self, call: Call) -> Sequence[Any]:
        tokens, places = (np.array(x, np.int32) for x in (call.tokens, call.places))
        if call.function.kind == "decode":
            return tokens, places
        return tokens, places[0], places[1]

    def close(self) -> None:
        """Release the arrays and the program."""
        self._parameters, self.caches = [], []
        self.program.close()
