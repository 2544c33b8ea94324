"""A training bundle's steps on one batch after another, without a shepherd.

    init ─► params, state ─► grad(params, batch) ─► apply(params, grads, state) ─┐
                    ▲                                                            │
                    └──────────────── by role and name ◄─────────────────────────┘

Of a program that is spread over a mesh each member runs this on its parts: what
`@apply` leaves on a member is what the next `@grad` takes there, so nothing but the
program's own collectives crosses between members. Parameters and state stay on the
device; gradients live from `@grad` to `@apply`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.bundle import Function, Manifest, TensorSpec
from pcp.errors import BundleError, UsageError
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.runtime.memory.dtypes import numpy_dtype

#: The roles of what a step keeps for the next one.
KEPT = ("param", "state")
_FUNCTIONS = ("init", "grad", "apply")

Arrays = Mapping[str, np.ndarray]
_Key = tuple[str, str]


def check(manifest: Manifest) -> None:
    """Refuse a bundle that has no training step: `BundleError`."""
    if manifest.mode != "train":
        raise BundleError(
            f"a bundle of mode {manifest.mode!r} has no training step; compile with "
            "`pcp-compile MODEL --mode train`"
        )
    for name in _FUNCTIONS:
        manifest.function(name)


def kept(manifest: Manifest) -> list[TensorSpec]:
    """The parameters and the optimizer's state, as `@apply` leaves them."""
    return [t for t in manifest.function("apply").results if t.role in KEPT]


def batch_of(manifest: Manifest, given: Arrays, step: int) -> dict[str, np.ndarray]:
    """The data of one step, whole: each tensor as it is, or batch `step` of several.

    A tensor with one dimension more than the program's holds batches, which are taken
    in turn. `UsageError` for a tensor that is missing, has another shape, holds another
    number of batches than the others, or what the program's type cannot hold.
    """
    specs = [t for t in manifest.function("grad").inputs if t.role == "data"]
    batch = {}
    for spec in specs:
        if spec.name not in given:
            raise UsageError(f"no data {spec.name!r} is given")
        array = given[spec.name]
        if array.shape[1:] == spec.shape and len(array):
            array = array[step % len(array)]
        if array.shape != spec.shape:
            shape = list(spec.shape)
            raise UsageError(
                f"{spec.name} has shape {list(given[spec.name].shape)}, not {shape} "
                f"or a number of batches of that shape"
            )
        batch[spec.name] = cast(array, spec)
    _check_counts(specs, given)
    return batch


def _check_counts(specs: Sequence[TensorSpec], given: Arrays) -> None:
    """What holds batches holds equally many: `UsageError`."""
    counts = {
        t.name: len(given[t.name])
        for t in specs
        if given[t.name].ndim and given[t.name].shape[1:] == t.shape
    }
    if len(set(counts.values())) > 1:
        held = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(f"unequal numbers of batches are given: {held}")


def cast(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The array in the program's type; `UsageError` where a value would be lost.

    Floats may be rounded. An integer or a truth value stays what it is, what is finite
    stays finite. Types that numpy's files do not name, as bf16, come as their bits.
    """
    wanted, held = numpy_dtype(spec.dtype), array.dtype
    if held == wanted:
        return array
    if held == np.dtype(f"V{wanted.itemsize}"):
        return array.view(wanted)
    if held.kind not in "biufc" and (held.kind != "V" or held.type is np.void):
        raise UsageError(f"{spec.name} holds {held}, which are no numbers")
    if held.kind == "c" and wanted.kind != "c":
        raise UsageError(
            f"{spec.name} holds {held}, and the program takes {spec.dtype}"
        )
    with np.errstate(all="ignore"):  # what is lost is found below
        made = array.astype(wanted)
        exact = wanted.kind in "biu"
        kept = made == array if exact else np.isfinite(made) | ~np.isfinite(array)
    if not np.all(kept):
        lost = array[~kept].flat[0]
        raise UsageError(
            f"{spec.name} holds {held}, the program takes {spec.dtype}, which cannot "
            f"hold {lost}"
        )
    return made


class Steps:
    """Parameters and state on a device, and the step that updates them.

    `program` is a loaded training bundle, of one member where it is spread; `whole`
    the bundle's manifest. `mesh` and `place` say which member this is; without them
    the program is the whole.
    """

    def __init__(
        self,
        program: Any,
        whole: Manifest,
        mesh: Mesh | None = None,
        place: dict[str, int] | None = None,
    ) -> None:
        check(whole)
        self._program = program
        self._own: dict[str, Function] = {
            name: program.manifest.function(name) for name in _FUNCTIONS
        }
        self._layouts: dict[_Key, Layout] = {
            (t.role, t.name): t.layout
            for name in ("grad", "apply")
            for t in whole.function(name).inputs
        }
        self._mesh, self._place = mesh, place or {}
        self._values: dict[_Key, Any] = {}

    def start(self, seed: int, given: Arrays | None = None) -> None:
        """First values from `@init`; whole tensors in `given` take their place.

        Where all of them are given, `@init` does not run.
        """
        specs, given = self._own["init"].results, given or {}
        drawn: list[Any] = [None] * len(specs)
        if any(spec.name not in given for spec in specs):
            drawn = list(self._call("init", [np.array(seed, np.int64)]))
        # Equal constants of `@init` may share one buffer, which `@apply` updates in
        # place: each gets its own. What is drawn lies together, and goes before that.
        hosts = [
            self._part((spec.role, spec.name), given[spec.name], spec)
            if spec.name in given
            else np.array(value)
            for spec, value in zip(specs, drawn, strict=True)
        ]
        drawn.clear()
        for spec in reversed(specs):
            made = self._program.to_device(hosts.pop(), spec.dtype)
            self._values[spec.role, spec.name] = made

    def step(self, batch: Arrays) -> np.ndarray:
        """One update on a batch of whole tensors; the loss before it, a scalar."""
        data = {
            ("data", t.name): self._part(("data", t.name), batch[t.name], t)
            for t in self._own["grad"].inputs
            if t.role == "data"
        }
        found = self._run("grad", self._values | data)
        (loss,) = [found.pop(key) for key in list(found) if key[0] == "loss"]
        self._values |= self._run("apply", self._values | found)
        return np.asarray(loss)

    def values(self) -> list[np.ndarray]:
        """Copies of this member's parts of what is kept, in the order of `kept`."""
        specs = kept(self._program.manifest)
        return [np.asarray(self._values[t.role, t.name]) for t in specs]

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and state that this member holds."""
        return sum(value.nbytes for value in self._values.values())

    def close(self) -> None:
        """Let go of the arrays; the program stays open."""
        self._values.clear()

    def _run(self, name: str, values: Mapping[_Key, Any]) -> dict[_Key, Any]:
        """Call a function with arguments by role and name; its results likewise."""
        function = self._own[name]
        arguments = [values[t.role, t.name] for t in function.inputs]
        results = self._call(name, arguments)
        return {
            (t.role, t.name): value
            for t, value in zip(function.results, results, strict=True)
        }

    def _call(self, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
        results = self._program[name](*arguments, device_arrays=True)
        return results if isinstance(results, tuple) else (results,)

    def _part(self, key: _Key, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """This member's part of a whole tensor; `UsageError` if it does not fit."""
        layout = self._layouts[key]
        where = (
            layout.slices(array.shape, self._mesh, self._place)
            if self._mesh is not None and array.ndim == len(layout.dims)
            else ()
        )
        part = np.array(cast(array[where], spec), order="C")
        if part.shape != spec.shape:
            raise UsageError(
                f"{spec.name}: a part of {list(part.shape)}, not {list(spec.shape)}; "
                f"the tensor given has shape {list(array.shape)}"
            )
        return part
