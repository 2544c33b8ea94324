"""A program of a decoder on one device, with its parameters and the slots' caches.

The program is one of `pcp.from_hf(DIR, phases=..., context=...)`: functions
`prefill_32_1024`, `decode_4_1024`, ... (`decoder_phase`), whose caches are state. A
slot's cache is its arrays on the device; which slots a call computes is whose arrays it
takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.decoder_phase import ADJUST, KINDS, SAMPLERS, Phase, cache_place, sampler
from pcp.errors import BundleError
from pcp.manifest import Function, Manifest
from pcp.runtime.program.executor import DeviceArray, Program
from pcp.serving.drawing import Draw, listed
from pcp.serving.weights import parameters

_ROWS_OF_A_CALL = 16


@dataclass(frozen=True)
class Shapes:
    """What a program can compute: its functions by size, positions, vocabulary."""

    prefill: tuple[Phase, ...]
    decode: tuple[Phase, ...]
    context: int
    vocabulary: int
    sampled: frozenset[int] = frozenset()
    """Of how many rows of logits it can draw the tokens."""
    parts: int = 1
    """Of the vocabulary, where it draws them."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Shapes":
        """Those of a bundle; `BundleError` where it is none of a decoder."""
        found: dict[str, list[Phase]] = {kind: [] for kind in KINDS}
        for name in manifest.functions:
            if (phase := Phase.named(name)) is not None:
                _check(manifest, phase)
                found[phase.kind].append(phase)
        if not all(found.values()):
            raise BundleError(
                "the bundle is none to serve: it has no functions prefill_* and "
                "decode_*; make its program with pcp.from_hf(DIR, phases=[...])"
            )
        any_ = manifest.functions[found["prefill"][0].name]
        context = any_.inputs[any_.inputs_of("state")[0]].shape[1]
        by_size = {
            k: sorted(f, key=lambda f: (f.rows, f.slots, f.context))
            for k, f in found.items()
        }
        prefill, decode = tuple(by_size["prefill"]), tuple(by_size["decode"])
        if all(f.slots > 1 for f in prefill) or all(f.rows > 1 for f in decode):
            raise BundleError(
                "the bundle is none to serve: one function of prefill is for a single "
                "slot, and one of decode for a single token"
            )
        sampled, parts = _sampled(manifest, found)
        return cls(prefill, decode, context, any_.results[0].shape[1], sampled, parts)

    @property
    def chunk(self) -> int:
        """Tokens of a slot that one call takes at most."""
        return max(f.rows for f in self.prefill if f.slots == 1)

    @property
    def drafted(self) -> int:
        """Drafted tokens that one call can look at behind a slot's newest."""
        return max(f.rows for f in self.decode) - 1

    def of_chunk(self, rows: int, context: int) -> Phase:
        """The smallest prefill of a slot for so many rows."""
        return next(
            f
            for f in self.prefill
            if f.slots == 1 and f.rows >= rows and f.context >= context
        )

    def together(self, rows: int, context: int, slots: int) -> Phase:
        """The prefill of most slots, of these at most, for so many rows each."""
        fit = [f for f in self.prefill if f.rows == rows and f.context >= context]
        most = max(f.slots for f in fit if f.slots <= slots)
        return next(f for f in fit if f.slots == most)

    def of_steps(self, count: int, rows: int, context: int, most: int) -> Phase:
        """The smallest decode for so many steps, or the widest for as many as it can.

        `rows` are the tokens of the longest step, `most` how many slots there are.
        """
        fit = [f for f in self.decode if f.context >= context and f.slots <= most]
        least = min(f.rows for f in fit if f.rows >= rows)
        fit = [f for f in fit if f.rows == least]
        enough = [f for f in fit if f.slots >= count]
        widest = max(f.slots for f in fit)
        return (enough or [f for f in fit if f.slots == widest])[0]

    def lengths(self, count: int) -> list[int]:
        """Rows of the prefill calls for so many tokens, those that are full first.

        A call costs its rows, of which what no token fills is lost, and what
        `_ROWS_OF_A_CALL` more would.
        """
        sizes = sorted({f.rows for f in self.prefill if f.slots == 1})
        enough = next((size for size in sizes if size >= count), None)
        less = max((size for size in sizes if size < count), default=None)
        whole = None if enough is None else [enough]
        if less is None:
            return whole or []
        parts = [less, *self.lengths(count - less)]
        return parts if whole is None or _cost(parts) < _cost(whole) else whole


def _sampled(
    manifest: Manifest, phases: Mapping[str, Sequence[Phase]]
) -> tuple[frozenset[int], int]:
    """Of how many rows a program draws tokens, and of how many parts."""
    functions = manifest.functions
    rows = {phase.looked_at for found in phases.values() for phase in found}
    names = {n: [sampler(k, n) for k in (*SAMPLERS, ADJUST)] for n in rows}
    here = {n: own for n, own in names.items() if all(f in functions for f in own)}
    parts = {functions[own[0]].results[0].shape[1] for own in here.values()}
    return frozenset(here), max(parts, default=1)


def _check(manifest: Manifest, phase: Phase) -> None:
    """What a function is to take, it takes."""
    inputs = manifest.functions[phase.name].inputs
    if tuple(spec.name for spec in inputs if spec.role == "data") != phase.data:
        raise BundleError(
            f"{phase.name} takes other data than {', '.join(phase.data)}: another "
            "version of pcp compiled the bundle; compile it again"
        )


def _cost(lengths: Sequence[int]) -> int:
    return sum(lengths) + _ROWS_OF_A_CALL * len(lengths)


@dataclass(frozen=True)
class Call:
    """One call of a function.

    `starts` are the positions of each slot's first token, `counts`, of a prefill, how
    many of its tokens count. `wanted` is whether somebody looks at the logits, and
    `draw` how the program samples of them.
    """

    phase: Phase
    slots: tuple[int, ...]
    tokens: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...] = ()
    wanted: bool = True
    draw: Draw | None = None


@dataclass(frozen=True)
class _Ports:
    """What a function of a device takes, parameters first, and gives, in order.

    A cache is the slot of the call that it is of, and its name in the slot.
    """

    parameters: list[str]
    caches: list[tuple[int, str]]
    data: list[str]
    results: list[tuple[int, str] | None]

    @classmethod
    def of(cls, function: Function) -> "_Ports":
        """`results` has None for the logits, which one stage of a pipeline gets."""
        return cls(
            [t.name for t in parameters(function.inputs)],
            [cache_place(t.name) for t in function.inputs if t.role == "state"],
            [t.name for t in function.inputs if t.role == "data"],
            [
                cache_place(t.name) if t.role == "state" else None
                for t in function.results
            ],
        )


class CachedModel:
    """Runs calls. Its arrays are on the program's device.

    Of a program that is spread over a mesh it has the parts of one member.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, np.ndarray], slots: int
    ) -> None:
        self.program, self.slots = program, slots
        functions = program.manifest.functions
        self._ports = {name: _Ports.of(f) for name, f in functions.items()}
        self._names = {n for ports in self._ports.values() for n in ports.parameters}
        self._parameters: dict[str, DeviceArray] = {}
        self.take(weights)
        self._kinds = {
            cache_place(spec.name)[1]: spec
            for function in functions.values()
            for spec in function.inputs
            if spec.role == "state"
        }
        self.caches: list[dict[str, DeviceArray]] = [{} for _ in range(slots)]
        for slot in range(slots):
            self.clear(slot)

    def take(self, weights: Mapping[str, np.ndarray]) -> None:
        """Compute with these weights from now on; what caches hold is of the old."""
        self._parameters = {n: self.program.to_device(weights[n]) for n in self._names}

    @property
    def weight_bytes(self) -> int:
        """Of the parameters that this device holds."""
        return sum(array.nbytes for array in self._parameters.values())

    @property
    def cache_bytes(self) -> int:
        """Of the caches of all slots."""
        return sum(a.nbytes for arrays in self.caches for a in arrays.values())

    def clear(self, slot: int) -> None:
        """Fill a slot's cache with zeros."""
        self.caches[slot] = {
            name: self.program.to_device(np.zeros(spec.shape, np.float32), spec.dtype)
            for name, spec in self._kinds.items()
        }

    def run(self, call: Call) -> DeviceArray | None:
        """The logits of a call, [rows, V]; of a prefill [slots, V]. V may be a part.

        None where another stage of a pipeline gets them.
        """
        ports, data = self._ports[call.phase.name], self._data(call)
        made = self.program[call.phase.name](
            *[self._parameters[name] for name in ports.parameters],
            *[self.caches[call.slots[slot]][name] for slot, name in ports.caches],
            *[data[name] for name in ports.data],
            device_arrays=True,
        )
        logits = None
        for place, value in zip(ports.results, made, strict=True):
            if place is None:
                logits = value
            else:
                self.caches[call.slots[place[0]]][place[1]] = value
        return logits

    def drawn(
        self, call: Call, logits: DeviceArray, part: int = 0
    ) -> np.ndarray | None:
        """What is drawn of a call's logits, `Rows.drawn`; of a part of the vocabulary
        [rows, 1, ...].
        """
        if (draw := call.draw) is None:
            return None
        rows, width = logits.shape
        adjusted = logits
        for changes in draw.adjustments(rows, width, part):
            adjust = self.program[sampler(ADJUST, rows)]
            adjusted = adjust(adjusted, *changes, device_arrays=True)
        given = [adjusted, draw.numbers] if draw.asked else []
        found: np.ndarray = self.program[draw.name(rows)](logits, *given)
        if not draw.listed:
            return found
        most = listed(logits.numpy(), draw.listed, part * width)
        return np.concatenate([found, most[:, None]], 2)

    def _data(self, call: Call) -> Mapping[str, np.ndarray]:
        given = call.tokens, call.starts, call.counts
        return {
            name: np.array(numbers, np.int32)
            for name, numbers in zip(call.phase.data, given, strict=False)
        }

    def close(self) -> None:
        """Release the arrays and the program."""
        self._parameters, self.caches = {}, []
        self.program.close()
