"""A training bundle's inner steps on a device, one batch after another.

    init ─► params, state ─► grad(params, batch) ─► apply(params, grads, state) ─┐
                    ▲                                                            │
                    └──────────────── by role and name ◄─────────────────────────┘

An exchange may stand between `@grad` and `@apply` (`pcp.training.trainer.exchange`).
Each member of a mesh
runs this loop on its parts: the results of `@apply` on a member are the arguments of
its next `@grad`, so members exchange data only by the program's own collectives.
Parameters and state stay on the device; gradients live from `@grad` to `@apply`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.errors import BundleError, UsageError
from pcp.layout import Layout
from pcp.manifest import Function, Manifest, TensorSpec
from pcp.mesh import Mesh
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.storage.derived_values import derived
from pcp.training.trainer import draw_key
from pcp.training.trainer.functions import Functions, Key, Values

#: The roles of results of `@apply`, and of `@grad`, that the next step takes.
KEPT, MODEL_STATE = ("param", "state"), "model_state"
_BESIDES = ("loss", "metric", MODEL_STATE)
"""The roles of results of `@grad` that are no gradients or slopes."""
_BROUGHT = (MODEL_STATE, "frozen", "param")
"""The roles of arguments whose values may come with a model."""
_FUNCTIONS = ("init", "grad", "apply")
_INNER_INIT = "inner_init"
"""The function of the optimizer's first state from the parameters."""

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
    """The parameters, the optimizer's state, and the program's state."""
    results = (manifest.function(name).results for name in ("apply", "grad"))
    found = {t.key: t for side in results for t in side}
    return [t for (role, _), t in found.items() if role in (*KEPT, MODEL_STATE)]


def brought(signatures: Mapping[str, Function]) -> list[TensorSpec]:
    """The arguments whose values come with the model, not from `@init`."""
    made = {t.key for t in signatures["init"].results}
    takes = signatures["grad"].inputs
    return [t for t in takes if t.role in _BROUGHT and t.key not in made]


def key_of_program(manifest: Manifest) -> TensorSpec | None:
    """The draw key of `@grad`; None where it draws no random numbers."""
    keys = [t for t in manifest.function("grad").inputs if t.role == "key"]
    return keys[0] if keys else None


def batch_of(
    manifest: Manifest, given: Arrays, step: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """The whole data of one step: each given tensor, or batch `step` of several.

    For a program that draws random numbers they have a draw key, from the seed and the
    step.

    A tensor with one dimension more than the program's holds batches, which are taken
    in turn. `UsageError` for a tensor that is missing, has another shape or another
    number of batches than the others, or has values that the program's type cannot
    hold.
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
    if (key := key_of_program(manifest)) is not None:
        pieces = key.shape[0] if len(key.shape) > 1 else 1
        positions = np.arange(step * pieces, (step + 1) * pieces)
        batch[key.name] = draw_key.keys(key, seed, positions)
    return batch


def _check_counts(specs: Sequence[TensorSpec], given: Arrays) -> None:
    """`UsageError` where tensors hold unequal numbers of batches."""
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

    Floats may be rounded. Integers and booleans must be exact, and finite values stay
    finite. Types that numpy's files do not name, as bf16, are given as their bits.
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
    with np.errstate(all="ignore"):  # lost values are found below
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


def loss_value(losses: Sequence[Any]) -> float:
    """The mean of losses that may still be on the device."""
    with np.errstate(invalid="ignore"):  # of infinities: NaN, without a warning
        return float(np.mean([np.asarray(x).astype(np.float64) for x in losses]))


def _of_role(role: str, values: Values) -> dict[Key, Any]:
    return {key: value for key, value in values.items() if key[0] == role}


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
            t.key: t.layout
            for name in ("grad", "apply")
            for t in whole.function(name).inputs
        }
        takes = (self._own[name].inputs for name in ("grad", "apply"))
        sides = (self._own["init"].results, *takes)
        self._dtypes = {t.key: t.dtype for side in sides for t in side}
        self._parameters = whole.parameters
        self._mesh, self._place = mesh, place or {}
        self._values: dict[Key, Any] = {}
        self.metrics: list[dict[str, Any]] = []
        """The metrics of the program beside each loss, by name, if it has any."""

    def start(self, seed: int, given: Arrays | None = None) -> None:
        """Set first values: whole tensors in `given`, else results of `@init`."""
        self.hold(self.first(seed, given))

    def first(self, seed: int, given: Arrays | None = None) -> dict[Key, np.ndarray]:
        """First values on the host: whole tensors in `given`, else results of `@init`.

        `@init` does not run if all are given. `UsageError` if one that comes with the
        model is not given, and does not follow from those that are.
        """
        given, lacking = dict(given or {}), brought(self._own)
        specs = [*self._own["init"].results, *lacking]
        named = {t.name: cast(given[t.name], t) for t in lacking if t.name in given}
        given |= derived(self._parameters, named)
        for spec in lacking:
            if spec.name not in given:
                raise UsageError(
                    f"no {spec.role.replace('_', ' ')} {spec.name!r} is given, which "
                    "comes with the model; give it with the data"
                )
        named = [spec for spec in specs if spec.name in given]
        parts = {spec.key: self._part(given[spec.name], spec) for spec in named}
        return self.initial(seed, parts if given else None)

    def initial(self, seed: int, given: Values | None = None) -> dict[Key, np.ndarray]:
        """First values on the host: those given, and the other results of `@init`.

        Optimizer state that is not given is that of these parameters, by `@inner_init`
        where it follows from them. `@init` runs where it is needed. BundleError for an
        older bundle, which lacks an `@inner_init` that it needs.
        """
        hosts, signature = dict(given or {}), self._own["init"]
        follows = given is not None and _INNER_INIT in self._own
        later = {t.key for t in self._own[_INNER_INIT].results} if follows else ()
        asked = [t.key for t in signature.results]
        asked = [key for key in asked if key not in hosts and key not in later]
        # Equal constants of a compiled `@init` may share one buffer, which `@apply`
        # would update in place for each of them: arrays on the host are apart, also
        # when they are put on the device.
        if asked:
            (port,) = signature.inputs
            given_seed = {port.key: np.array(seed, np.int64)}
            drawn = self._functions("init", given_seed, on_host=True)
            hosts |= {key: drawn[key] for key in asked}
            if given is not None and not follows:
                _check_drawn_state(drawn, asked)
        if follows:
            made = self._functions(_INNER_INIT, hosts)
            # Of a stage: all make what goes with no parameter, and one reads it.
            new = [k for k in made if k not in hosts and k in self._dtypes]
            hosts |= {k: np.array(made[k]) for k in new}
        return hosts

    def hold(self, hosts: dict[Key, np.ndarray]) -> None:
        """Put tensors on the device, in place of the present ones; empties `hosts`."""
        to_device = self._functions.program.to_device
        for key in list(hosts):
            self._values[key] = to_device(hosts.pop(key), self._dtypes[key])

    def step(self, batch: Arrays) -> np.ndarray:
        """Make one update on a batch of whole tensors; the loss before it, a scalar."""
        loss, gradients = self.gradients(batch)
        self.apply(gradients)
        return np.asarray(loss)

    def gradients(
        self, batch: Arrays, besides: Values | None = None
    ) -> tuple[Any, dict[Key, Any]]:
        """`@grad` on a batch of whole tensors: the loss, and the gradients.

        `besides` are arguments that are neither kept nor data. The call updates the
        program's state, and adds an entry to `metrics`.
        """
        given = self.data(batch) | dict(besides or {})
        found = self._functions("grad", self._values | given)
        loss, metrics, state = (_of_role(r, found) for r in _BESIDES)
        self.take(state)
        if metrics:
            self.metrics.append({name: value for (_, name), value in metrics.items()})
        (value,) = loss.values()
        return value, {k: v for k, v in found.items() if k[0] not in _BESIDES}

    def data(self, batch: Arrays) -> dict[Key, np.ndarray]:
        """This member's parts of a batch of whole tensors, with the draw key."""
        specs = [t for t in self._own["grad"].inputs if t.role in ("data", "key")]
        return {t.key: self._part(batch[t.name], t) for t in specs}

    def apply(self, gradients: Values) -> None:
        """`@apply`: new parameters and state."""
        self.take(self._functions("apply", self._values | dict(gradients)))

    def take(self, values: Values) -> None:
        """Use these tensors, which are on the device, in place of the present ones."""
        self._values |= values

    @property
    def trained(self) -> list[Key]:
        """The parameters: results of `@init`, then those that come with the model."""
        specs = [*self._own["init"].results, *brought(self._own)]
        return [t.key for t in specs if t.role == "param"]

    def held(self, role: str) -> dict[Key, Any]:
        """The tensors of a role, on the device."""
        return _of_role(role, self._values)

    def values(self) -> list[np.ndarray]:
        """Copies of this member's parts of kept tensors, in the order of `kept`."""
        specs = kept(self._functions.program.manifest)
        return [np.asarray(self._values[t.key]) for t in specs]

    @property
    def nbytes(self) -> int:
        """The bytes of this member's parameters and state."""
        return sum(value.nbytes for value in self._values.values())

    def close(self) -> None:
        """Release the arrays; the program stays open."""
        self._values.clear()

    def _part(self, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """This member's part of a whole tensor; `UsageError` if it does not fit."""
        layout = self._layouts[spec.key]
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


def _check_drawn_state(drawn: Values, asked: Sequence[Key]) -> None:
    """Refuse state that `@init` sets to a parameter, if other parameters are given.

    Older bundles have no `@inner_init`: averages and anchors would be those of the
    parameters from the seed, not of the given ones.
    """
    parameters = [np.asarray(a) for (role, _), a in drawn.items() if role == "param"]
    for key in asked:
        state = np.asarray(drawn[key])
        if key[0] == "param" or state.size < 2 or (state == state.flat[0]).all():
            continue  # one number everywhere: not drawn
        if any(np.array_equal(state, one) for one in parameters):
            raise BundleError(
                f"the state {key[1]!r} begins as a parameter, and this bundle knows it "
                "of the seed's parameters alone; compile the model again to begin from "
                "weights that are given"
            )
