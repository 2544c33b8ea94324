"""One worker's numbers: the functions of a training bundle, called in order.

    restore(snapshot) or fresh(seed)
    join(communicator)          the group of the round
    begin()                     local parameters := the shared ones
    step(batches) x H           @grad on each batch, perhaps @grad_sync, then @apply
    outer(tokens)               @outer_step, a collective among the members
    adopt(new)                  what was committed becomes the state

Parameters and outer state live in host arrays, since they are compared, sent and
saved; local parameters and the inner optimizer's state stay on the device. A round
that is not adopted leaves the shared and the private state as they were, and `outer`
can be repeated: it consumes nothing.

Where members meet in every step (@grad_sync) their inner optimizers' states are
alike, so they are shared state as well. Such a round begins and ends with it, and is
repeated from its beginning.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from pcp.errors import BundleError, StateMismatch, UsageError
from pcp.manifest import Function, Manifest, TensorSpec
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.data.corpus import Batch
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    INNER,
    OUTER,
    PARAMETER,
    PRIVATE,
    as_masters,
    check_like,
    prefixed,
    shared_part,
)
from pcp.training.trainer.background_exchange import Beside
from pcp.training.trainer.sync_wait_timer import Meetings
from pcp.training.trainer.training_plan import batch_shape, check_bundle, plan_of


def one_group(
    specs: Sequence[TensorSpec], values: Sequence[Any], *roles: str
) -> list[Any]:
    """The values whose spec has one of `roles`."""
    return [v for spec, v in zip(specs, values, strict=True) if spec.role in roles]


_PREFIX = {
    "param": PARAMETER,
    "anchor": PARAMETER,
    "outer": OUTER,
    "private": PRIVATE,
}
_TOGETHER = f"{OUTER}inner."
"""The inner optimizer's state where it is shared."""
_NOTHING = Function(inputs=(), results=())


class BundleTrainer:
    """A `Trainer` that runs a training bundle on a `pcp.runtime.Program`."""

    resumes = False
    progress = 0

    def __init__(
        self, program: Any, manifest: Manifest, beside: Any | None = None
    ) -> None:
        """`beside` is a second program of the bundle, for `@outer_early`."""
        check_bundle(manifest)
        self._plan = plan = plan_of(manifest)
        overlap = plan.synchronize == "round" and plan.overlap
        if overlap != (beside is not None):
            raise BundleError("one with @outer_early is loaded with BundleTrainer.load")
        self.batch, self.block = batch_shape(manifest)
        self.parameter_shapes: Sequence[Sequence[int]] = [
            p.shape for p in manifest.parameters
        ]
        self._program = program
        self._functions = manifest.functions
        self.every_step = plan.synchronize == "step"
        self._meetings = Meetings()
        self._parameters = manifest.parameters
        self._names = [p.name for p in manifest.parameters]
        self._states = [
            t.name for t in self._functions["init"].results if t.role == "state"
        ]
        self._data_types = [
            numpy_dtype(t.dtype)
            for t in self._functions["grad"].inputs
            if t.role == "data"
        ]
        self._shared: Arrays = {}
        self._private: Arrays = {}
        self._local: list[Any] = []
        self._state: list[Any] = []
        self._kept: dict[str, Any] = {}
        """Outer state within a round, where members meet in every step."""
        self._early = None if beside is None else Beside(beside)

    @classmethod
    def load(cls, bundle: Any, device: str, target: str | None) -> Self:
        """Load the module for `target` on an IREE device, e.g. `local-task`.

        Without a target, the first module that the device can run.
        """
        from pcp.runtime.program.executor import Program

        program, beside = Program.load(bundle, device=device, module=target), None
        if plan_of(bundle.manifest).in_background:
            beside = Program.load(bundle, device=program.device, module=target)
        return cls(program, bundle.manifest, beside)

    @property
    def waited(self) -> float:
        """Seconds that this round spent in exchanges between inner steps."""
        return self._meetings.waited

    @property
    def meeting(self) -> tuple[int, float | None]:
        """Exchanges in between that this round came to; seconds waited in the last."""
        return self._meetings.now

    @property
    def shared(self) -> Arrays:
        """Parameters and outer state, by prefixed names."""
        return self._shared

    @property
    def private(self) -> Arrays:
        """Outer state of this worker's own, by name."""
        return {k.removeprefix(PRIVATE): a for k, a in self._private.items()}

    def fresh(self, seed: int) -> None:
        """Parameters and inner state from `@init`, outer state from `@outer_init`."""
        results = self._call("init", np.array(seed, np.int64))
        specs = self._functions["init"].results
        # Equal constants of `@init` (all the zeros) may share one buffer, which
        # `@apply` would update in place for each of them: give each its own.
        states = [np.array(_host(v)) for v in one_group(specs, results, "state")]
        self._state = [self._device(value) for value in states]
        parameters = [_host(p) for p in one_group(specs, results, "param")]
        self._shared = prefixed(PARAMETER, self._names, parameters)
        if self.every_step:
            self._shared |= prefixed(_TOGETHER, self._states, states)
        new = self._new_outer_state(parameters)
        self._shared |= shared_part(new)
        self._private = {k: a for k, a in new.items() if k not in self._shared}

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Take a snapshot's shared state, and those of its others that are for us."""
        snapshot = as_masters(snapshot, self._parameters, PARAMETER)
        missing = [n for n in self._names if PARAMETER + n not in snapshot]
        if missing:
            raise StateMismatch(
                f"the state to start from lacks the parameter {missing[0]!r}; "
                "was it made by another model?"
            )
        if not self._state:
            self.fresh(0)  # for the inner state, which a snapshot may lack
        shared = {
            name: np.array(snapshot.get(name, old))
            for name, old in self._shared.items()
        }
        check_like(self._shared, shared)
        self._shared = shared
        self._restore_private(snapshot, index)
        self._restore_inner(snapshot, index)

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group from now on; `@outer_early` starts at once."""
        self._program.communicator = communicator
        if self._early is not None:
            kept = self._kept_by_role(self._shared | self._private)
            arguments = self._arguments("outer_early", kept)
            self._early.start(communicator, "outer_early", arguments)

    def begin(self, steps: int = 1, tokens: int = 1) -> None:
        """Local parameters := the shared ones; the round has so many steps, tokens."""
        self._meetings = Meetings()
        self._local = [self._device(self._shared[PARAMETER + n]) for n in self._names]
        if self.every_step:
            together = [self._shared[_TOGETHER + n] for n in self._states]
            self._state = [self._device(value) for value in together]
            kept = shared_part(self._shared) | self._private
            ports = self._ports("grad_sync", "outer", "private")
            self._kept = {key: kept[key] for key in ports}

    def step(self, batches: Sequence[Batch]) -> Any:
        """`@grad` on each batch, the mean of the gradients, `@apply`.

        Without a batch, where members meet in every step, a step on the others'.
        """
        losses, gradients = [], []
        for batch in batches:
            loss, *grads = self._call("grad", *self._local, *self._data(batch))
            losses.append(loss)
            gradients.append(grads)
        mean = gradients[0] if len(batches) == 1 else _mean(gradients, self._local)
        if self.every_step:
            mean = self._synced(mean, sum(b.inputs.size for b in batches))
        results = self._call("apply", *self._local, *mean, *self._state)
        count = len(self._local)
        self._local, self._state = list(results[:count]), list(results[count:])
        return losses

    def turn(self) -> None:
        """Nothing is due between two inner steps."""

    def resume(self) -> None:
        """A round that does not resume begins again."""
        raise UsageError("this round cannot be resumed in mid-way")

    def _synced(self, gradients: Sequence[Any], tokens: int) -> Sequence[Any]:
        """`@grad_sync` with the group."""
        values = {
            "grad": gradients,
            "tokens": [np.array(tokens, np.float32)],
            **self._kept_by_role(self._kept),
        }
        with self._meetings.one():
            results = self._call("grad_sync", *self._arguments("grad_sync", values))
            count = len(gradients)
            kept = map(_host, results[count:])
            self._kept = dict(zip(self._kept, kept, strict=True))
        return results[:count]

    def outer(self, tokens: float, communicator: Any) -> Arrays:
        """`@outer_step` with the members of `communicator`."""
        self._program.communicator = communicator
        alone = self._plan.synchronize == "never" and not self._plan.outer_step
        if alone or self.every_step:
            return self._as_it_is()
        anchors = [self._shared[PARAMETER + n] for n in self._names]
        values = {
            "anchor": anchors,
            "replica": anchors,
            "param": self._local,
            "tokens": [np.array(tokens, np.float32)],
            "received": [] if self._early is None else self._early.finish(),
            **self._kept_by_role(self._shared | self._private),
        }
        results = self._call("outer_step", *self._arguments("outer_step", values))
        specs = self._functions["outer_step"].results
        return {
            _PREFIX[spec.role] + spec.name: _host(value)
            for spec, value in zip(specs, results, strict=True)
        }

    def _as_it_is(self) -> Arrays:
        """The state the inner steps left: all there is to a round."""
        new = prefixed(PARAMETER, self._names, map(_host, self._local))
        if self.every_step:
            new |= prefixed(_TOGETHER, self._states, map(_host, self._state))
        return new | self._kept

    def adopt(self, new: Arrays) -> None:
        """Make this the state."""
        shared = shared_part(new)
        check_like(self._shared, shared)
        self._shared = shared
        self._private |= {k: a for k, a in new.items() if k in self._private}

    def catch_up(self, shared: Arrays) -> None:
        """Go over to newer shared state: θ_m moves along, to θ' + (θ_m - θ).

        So what `@outer_step` finds between its anchors and this worker's parameters is
        how far the inner steps went from where they began.
        """
        for i, name in enumerate(self._names):
            old, new = (s[PARAMETER + name] for s in (self._shared, shared))
            if old.tobytes() == new.tobytes():
                continue
            own = _host(self._local[i])
            moved = own.astype(np.float64) - old.astype(np.float64)
            at = (new.astype(np.float64) + moved).astype(new.dtype)
            self._local[i] = self._device(at)
        self.adopt(shared)

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state, by name, where it is one's own."""
        if self.every_step:
            return {}
        return {
            name: np.array(_host(value))
            for name, value in zip(self._states, self._state, strict=True)
        }

    def evaluate(self, batch: Batch) -> float:
        """The loss of the shared parameters on one batch."""
        parameters = [self._shared[PARAMETER + name] for name in self._names]
        (loss,) = self._call("eval", *parameters, *self._data(batch))
        return float(_host(loss))

    def close(self) -> None:
        """Release device arrays, then the program."""
        self._local, self._state, self._kept = [], [], {}
        if self._early is not None:
            self._early.close()
        gc.collect()  # errors of failed exchanges hold arrays: see `Beside.close`
        self._program.close()

    def _call(self, name: str, *arguments: Any) -> Sequence[Any]:
        results = self._program[name](*arguments, device_arrays=True)
        return results if isinstance(results, tuple) else (results,)

    def _device(self, array: np.ndarray) -> Any:
        return self._program.to_device(array)

    def _data(self, batch: Batch) -> list[np.ndarray]:
        arrays = (batch.inputs, batch.targets)
        return [a.astype(t) for a, t in zip(arrays, self._data_types, strict=True)]

    def _arguments(self, name: str, values: Mapping[str, Sequence[Any]]) -> list[Any]:
        return _by_role(name, self._functions[name], values)

    def _ports(self, name: str, *roles: str) -> list[str]:
        """The prefixed names of a function's inputs that have one of `roles`."""
        inputs = self._functions[name].inputs
        return [_PREFIX[t.role] + t.name for t in inputs if t.role in roles]

    def _kept_by_role(self, kept: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Outer state, by role, in the order in which functions take it."""
        name = "grad_sync" if self.every_step else "outer_step"
        return {
            role: [kept[key] for key in self._ports(name, role)]
            for role in ("outer", "private")
        }

    def _new_outer_state(self, parameters: Sequence[np.ndarray]) -> Arrays:
        """`@outer_init`: shared and private state, as at the beginning."""
        if not self._functions.get("outer_init", _NOTHING).results:
            return {}
        results = self._call("outer_init", *parameters)
        return {
            _PREFIX[spec.role] + spec.name: np.array(_host(value))
            for spec, value in zip(
                self._functions["outer_init"].results, results, strict=True
            )
        }

    def _restore_private(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        parameters = [self._shared[PARAMETER + n] for n in self._names]
        anew = self._new_outer_state(parameters)
        for key in self._private:
            saved = f"{PRIVATE}{index}/{key.removeprefix(PRIVATE)}"
            value = np.array(snapshot.get(saved, anew[key]))
            check_like({key: anew[key]}, {key: value})
            self._private[key] = value

    def _restore_inner(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        # Of whom there is state: not of every index, if some of them are away.
        places = sorted({int(n.split("/")[1]) for n in snapshot if n.startswith(INNER)})
        if not places:
            return
        place = index if index in places else places[index % len(places)]
        prefix = f"{INNER}{place}/"
        old = self.inner()
        new = {name: snapshot.get(prefix + name) for name in old}
        check_like(old, new)
        self._state = [self._device(np.array(new[name])) for name in old]


def loss_value(losses: Sequence[Any]) -> float:
    """The mean of losses that may still be on the device."""
    with np.errstate(invalid="ignore"):  # of infinities: NaN is said, not warned of
        return float(np.mean([_host(loss).astype(np.float64) for loss in losses]))


def _host(value: Any) -> np.ndarray:
    return np.asarray(value)  # a DeviceArray copies itself out


def _by_role(
    name: str, function: Function, values: Mapping[str, Sequence[Any]]
) -> list[Any]:
    """The arguments of `function`, each taken in turn from its role's values."""
    queues = {role: iter(group) for role, group in values.items()}
    try:
        return [next(queues[spec.role]) for spec in function.inputs]
    except (KeyError, StopIteration) as error:
        roles = [spec.role for spec in function.inputs]
        raise BundleError(f"{name} has inputs of the roles {roles}") from error


def _mean(gradients: Sequence[Sequence[Any]], like: Sequence[Any]) -> list[np.ndarray]:
    """The mean over batches, added up in float64 and rounded once; zeros of none."""
    if not gradients:
        return [np.zeros_like(_host(parameter)) for parameter in like]
    means = []
    for parts in zip(*gradients, strict=True):
        arrays = [_host(part) for part in parts]
        total = np.sum([a.astype(np.float64) for a in arrays], axis=0)
        means.append((total / len(arrays)).astype(arrays[0].dtype))
    return means
