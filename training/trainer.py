"""One worker's numbers: the functions of a training bundle, called in order.

    restore(snapshot) or fresh(seed)
    begin()                     local parameters := the shared ones
    step(batches) x H           @grad on each batch, then @apply
    outer(tokens)               @outer_step, a collective among the members
    adopt(shared)               what was committed becomes the shared state

The shared state (parameters and outer momentum) lives in host arrays, since it
is compared, sent and saved; local parameters and the inner optimizer's state
stay on the device. A round that is not adopted leaves the shared state as it
was, and `outer` can be repeated: it consumes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from pcp.errors import BundleError, StateMismatch
from pcp.manifest import Function, Manifest, TensorSpec
from pcp.runtime.dtypes import numpy_dtype
from pcp.training.data import Batch
from pcp.training.tensors import Arrays

PARAMETER = "parameter/"
MOMENTUM = "momentum/"
INNER = "inner/"


class Trainer(Protocol):
    """What a worker needs from a model; `BundleTrainer` is the real one."""

    batch: int
    block: int

    @property
    def parameter_shapes(self) -> Sequence[Sequence[int]]:
        """Shapes of the trained tensors."""
        ...

    @property
    def shared(self) -> Arrays:
        """Parameters and momentum, by prefixed names: the state all agree on."""
        ...

    def fresh(self, seed: int) -> None:
        """Start from the seed."""
        ...

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Start from a snapshot; `index` picks one of its inner states."""
        ...

    def begin(self) -> None:
        """Local parameters := the shared ones."""
        ...

    def step(self, batches: Sequence[Batch]) -> Any:
        """One inner step; returns the loss, perhaps still on the device."""
        ...

    def outer(self, tokens: int, communicator: Any) -> Arrays:
        """The new shared state, from all members' local parameters."""
        ...

    def adopt(self, shared: Arrays) -> None:
        """Make this the shared state."""
        ...

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state."""
        ...

    def evaluate(self, batch: Batch) -> float:
        """The loss of the shared parameters."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


def one_group(
    specs: Sequence[TensorSpec], values: Sequence[Any], *roles: str
) -> list[Any]:
    """The values whose spec has one of `roles`."""
    return [v for spec, v in zip(specs, values, strict=True) if spec.role in roles]


def batch_shape(manifest: Manifest) -> tuple[int, int]:
    """B and T of a model that takes token ids and targets, both `[B, T]`."""
    data = [t for t in manifest.function("grad").inputs if t.role == "data"]
    shapes = {tuple(t.shape) for t in data}
    if len(data) != 2 or len(shapes) != 1 or len(data[0].shape) != 2:
        found = ", ".join(f"{t.name}: {list(t.shape)}" for t in data) or "none"
        raise BundleError(
            "training needs a model with two data inputs, ids and targets, of one "
            f"shape [batch, block]; this one has {found}"
        )
    return data[0].shape[0], data[0].shape[1]


def check_bundle(manifest: Manifest) -> None:
    """Refuse a bundle that this loop cannot train."""
    if manifest.mode != "train":
        raise BundleError(
            f"a bundle of mode {manifest.mode!r} cannot be trained; "
            "compile with `pcp-compile MODEL --mode train`"
        )
    for name in ("init", "grad", "apply", "outer_step", "eval"):
        manifest.function(name)


class BundleTrainer:
    """A `Trainer` that runs a training bundle on a `pcp.runtime.Program`."""

    def __init__(self, program: Any, manifest: Manifest) -> None:
        check_bundle(manifest)
        self.batch, self.block = batch_shape(manifest)
        self.parameter_shapes: Sequence[Sequence[int]] = [
            p.shape for p in manifest.parameters
        ]
        self._program = program
        self._functions = manifest.functions
        self._names = [p.name for p in manifest.parameters]
        self._states = [
            t.name for t in self._functions["init"].results if t.role == "state"
        ]
        self._momenta = [
            t for t in self._functions["outer_step"].inputs if t.role == "momentum"
        ]
        self._data_types = [
            numpy_dtype(t.dtype)
            for t in self._functions["grad"].inputs
            if t.role == "data"
        ]
        self._shared: Arrays = {}
        self._local: list[Any] = []
        self._state: list[Any] = []

    @classmethod
    def load(cls, bundle: Any, device: str, target: str | None) -> Self:
        """Load the module for `target` on an IREE device, e.g. `local-task`.

        Without a target, the first module that the device can run.
        """
        from pcp.runtime.executor import Program

        program = Program.load(bundle, device=device, module=target)
        return cls(program, bundle.manifest)

    @property
    def shared(self) -> Arrays:
        """Parameters and momentum, by prefixed names."""
        return self._shared

    def fresh(self, seed: int) -> None:
        """Parameters and inner state from `@init`, the momentum zero."""
        results = self._call("init", np.array(seed, np.int64))
        specs = self._functions["init"].results
        # Equal constants of `@init` (all the zeros) may share one buffer, which
        # `@apply` would update in place for each of them: give each its own.
        states = one_group(specs, results, "state")
        self._state = [self._device(_host(value)) for value in states]
        parameters = [_host(p) for p in one_group(specs, results, "param")]
        self._shared = _prefixed(PARAMETER, self._names, parameters)
        self._shared |= self._no_momentum()

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Take a snapshot's shared state, and one of its inner states if any."""
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
        _check_like(self._shared, shared)
        self._shared = shared
        self._restore_inner(snapshot, index)

    def begin(self) -> None:
        """Local parameters := the shared ones."""
        self._local = [self._device(self._shared[PARAMETER + n]) for n in self._names]

    def step(self, batches: Sequence[Batch]) -> Any:
        """`@grad` on each batch, the mean of the gradients, `@apply`."""
        losses, gradients = [], []
        for batch in batches:
            loss, *grads = self._call("grad", *self._local, *self._data(batch))
            losses.append(loss)
            gradients.append(grads)
        mean = gradients[0] if len(batches) == 1 else _mean(gradients)
        results = self._call("apply", *self._local, *mean, *self._state)
        count = len(self._local)
        self._local, self._state = list(results[:count]), list(results[count:])
        return losses

    def outer(self, tokens: int, communicator: Any) -> Arrays:
        """`@outer_step` with the members of `communicator`."""
        self._program.communicator = communicator
        values = {
            "anchor": [self._shared[PARAMETER + n] for n in self._names],
            "param": self._local,
            "momentum": [self._shared[MOMENTUM + t.name] for t in self._momenta],
            "tokens": [np.array(tokens, np.float32)],
        }
        function = self._functions["outer_step"]
        results = self._call("outer_step", *_by_role(function, values))
        specs = function.results
        parameters = one_group(specs, results, "param", "anchor")
        momenta = one_group(specs, results, "momentum")
        new = _prefixed(PARAMETER, self._names, map(_host, parameters))
        return new | _prefixed(
            MOMENTUM, [t.name for t in self._momenta], map(_host, momenta)
        )

    def adopt(self, shared: Arrays) -> None:
        """Make this the shared state."""
        _check_like(self._shared, shared)
        self._shared = shared

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state, by name."""
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
        self._local, self._state = [], []
        self._program.close()

    def _call(self, name: str, *arguments: Any) -> Sequence[Any]:
        results = self._program[name](*arguments, device_arrays=True)
        return results if isinstance(results, tuple) else (results,)

    def _device(self, array: np.ndarray) -> Any:
        return self._program.to_device(array)

    def _data(self, batch: Batch) -> list[np.ndarray]:
        arrays = (batch.inputs, batch.targets)
        return [a.astype(t) for a, t in zip(arrays, self._data_types, strict=True)]

    def _no_momentum(self) -> Arrays:
        zeros = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in self._momenta]
        return _prefixed(MOMENTUM, [t.name for t in self._momenta], zeros)

    def _restore_inner(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        count = len({n.split("/")[1] for n in snapshot if n.startswith(INNER)})
        if not count:
            return
        prefix = f"{INNER}{index % count}/"
        old = self.inner()
        new = {name: snapshot.get(prefix + name) for name in old}
        _check_like(old, new)
        self._state = [self._device(np.array(new[name])) for name in self._states]


def loss_value(losses: Sequence[Any]) -> float:
    """The mean of losses that may still be on the device."""
    return float(np.mean([_host(loss).astype(np.float64) for loss in losses]))


def _host(value: Any) -> np.ndarray:
    return np.asarray(value)  # a DeviceArray copies itself out


def _prefixed(prefix: str, names: Sequence[str], arrays: Any) -> Arrays:
    return {prefix + name: a for name, a in zip(names, arrays, strict=True)}


def _by_role(function: Function, values: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The arguments of `function`, each taken in turn from its role's values."""
    queues = {role: iter(group) for role, group in values.items()}
    try:
        return [next(queues[spec.role]) for spec in function.inputs]
    except (KeyError, StopIteration) as error:
        roles = [spec.role for spec in function.inputs]
        raise BundleError(f"outer_step has inputs of the roles {roles}") from error


def _mean(gradients: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    """The mean over batches, added up in float64 and rounded once."""
    means = []
    for parts in zip(*gradients, strict=True):
        arrays = [_host(part) for part in parts]
        total = np.sum([a.astype(np.float64) for a in arrays], axis=0)
        means.append((total / len(arrays)).astype(arrays[0].dtype))
    return means


def _check_like(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, array in old.items():
        other = new.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            found = "nothing" if other is None else f"{other.dtype} {other.shape}"
            raise StateMismatch(
                f"{name}: {found} for a tensor of {array.dtype} {array.shape}; is this "
                "the state of another model?"
            )
