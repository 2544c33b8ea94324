"""A training bundle's inner steps on a device, one batch after another.

    init ─► params, state ─► grad(params, batch) ─► apply(params, grads, state) ─┐
                    ▲                                                            │
                    └──────────────── by role and name ◄─────────────────────────┘

`pcp run --steps` makes them one by one; in a run with a shepherd an exchange may stand
between `@grad` and `@apply` (`pcp.training.trainer.exchange`). Of a program that is
spread over a mesh each member runs this on its parts: what `@apply` leaves on a member
is what the next `@grad` takes there, so nothing but the program's own collectives
crosses between members. Parameters and state stay on the device; gradients live from
`@grad` to `@apply`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pcp.errors import BundleError, UsageError
from pcp.layout import Layout
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import Mesh
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.trainer.functions import Functions, Key, Values, key_of

#: The roles of what a step keeps for the next one.
KEPT = ("param", "state")
_FUNCTIONS = ("init", "grad", "apply")

Arrays = Mapping[str, np.ndarray]


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
    """`UsageError` where tensors do not hold equally many batches."""
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
        self._functions = Functions(program)
        self._own = self._functions.signatures
        self._layouts: dict[Key, Layout] = {
            key_of(t): t.layout
            for name in ("grad", "apply")
            for t in whole.function(name).inputs
        }
        self._dtypes = {key_of(t): t.dtype for t in self._own["init"].results}
        self._mesh, self._place = mesh, place or {}
        self._values: dict[Key, Any] = {}

    def start(self, seed: int, given: Arrays | None = None) -> None:
        """First values from `@init`; whole tensors in `given` take their place.

        Where all of them are given, `@init` does not run.
        """
        given, specs = given or {}, self._own["init"].results
        asked = [spec for spec in specs if spec.name not in given]
        hosts = self.initial(seed, asked) if asked else {}
        for spec in specs:
            if spec.name in given:
                hosts[key_of(spec)] = self._part(given[spec.name], spec)
        self.hold(hosts)

    def initial(
        self, seed: int, asked: Iterable[TensorSpec] | None = None
    ) -> dict[Key, np.ndarray]:
        """The values that `@init` draws, on the host; all, or those asked for."""
        signature = self._own["init"]
        (port,) = signature.inputs
        drawn = self._functions("init", {key_of(port): np.array(seed, np.int64)})
        # Equal constants of `@init` may share one buffer, which `@apply` would update
        # in place for each of them: the copies are apart, also when they are put on
        # the device again, and what was drawn is let go of before that.
        specs = signature.results if asked is None else asked
        return {key_of(spec): np.array(drawn[key_of(spec)]) for spec in specs}

    def hold(self, hosts: dict[Key, np.ndarray]) -> None:
        """Put tensors on the device, in place of what is there; empties `hosts`."""
        to_device = self._functions.program.to_device
        for key in list(hosts):
            self._values[key] = to_device(hosts.pop(key), self._dtypes[key])

    def step(self, batch: Arrays) -> np.ndarray:
        """One update on a batch of whole tensors; the loss before it, a scalar."""
        loss, gradients = self.gradients(batch)
        self.apply(gradients)
        return np.asarray(loss)

    def gradients(
        self, batch: Arrays, besides: Values | None = None
    ) -> tuple[Any, dict[Key, Any]]:
        """`@grad` on a batch of whole tensors: the loss, and what else it gives.

        `besides` are arguments that are neither kept nor data.
        """
        given = self.data(batch) | dict(besides or {})
        found = self._functions("grad", self._values | given)
        (loss,) = [found.pop(key) for key in list(found) if key[0] == "loss"]
        return loss, found

    def data(self, batch: Arrays) -> dict[Key, np.ndarray]:
        """This member's parts of a batch of whole tensors."""
        specs = [t for t in self._own["grad"].inputs if t.role == "data"]
        return {key_of(t): self._part(batch[t.name], t) for t in specs}

    def apply(self, gradients: Values) -> None:
        """`@apply`: new parameters and state."""
        self.take(self._functions("apply", self._values | dict(gradients)))

    def take(self, values: Values) -> None:
        """Go on with these, which are on the device, in place of what is held."""
        self._values |= values

    @property
    def trained(self) -> list[Key]:
        """The parameters, in the order of `@init`."""
        return [key_of(t) for t in self._own["init"].results if t.role == "param"]

    def held(self, role: str) -> dict[Key, Any]:
        """The tensors of a role, on the device."""
        return {key: value for key, value in self._values.items() if key[0] == role}

    def values(self) -> list[np.ndarray]:
        """Copies of this member's parts of what is kept, in the order of `kept`."""
        specs = kept(self._functions.program.manifest)
        return [np.asarray(self._values[key_of(t)]) for t in specs]

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and state that this member holds."""
        return sum(value.nbytes for value in self._values.values())

    def close(self) -> None:
        """Let go of the arrays; the program stays open."""
        self._values.clear()

    def _part(self, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """This member's part of a whole tensor; `UsageError` if it does not fit."""
        layout = self._layouts[key_of(spec)]
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
