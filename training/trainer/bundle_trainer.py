"""One worker's numbers: the functions of a training bundle, called in order.

    restore(snapshot) or fresh(seed)
    join(communicator)          the group of the round
    begin()                     local parameters := those of the state
    step(batches) x H           @grad on each batch, perhaps @grad_sync, then @apply
    outer(tokens)               @outer_step, a collective among the members
    adopt(new)                  what was committed becomes the state

What is exchanged when is the part of an `Exchange`, by the bundle's plan. The state
lies in host arrays, since it is compared, sent and saved; local parameters and the
inner optimizer's state stay on the device. A round that is not adopted leaves the state
as it was, and `outer` can be repeated: it consumes nothing.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from pcp.errors import BundleError, StateMismatch
from pcp.manifest import Manifest
from pcp.training.data.dataset import Batch, batch_of, tokens_of_sample
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    INNER,
    PARAMETER,
    PRIVATE,
    as_masters,
    check_like,
    shared_part,
    under,
)
from pcp.training.trainer.background_exchange import BackgroundExchange
from pcp.training.trainer.bundle_checks import check_bundle, data_inputs, plan_of
from pcp.training.trainer.exchange import Exchange, RoundExchange
from pcp.training.trainer.fragment_exchange import FragmentExchange
from pcp.training.trainer.functions import Functions
from pcp.training.trainer.replica import with_replica
from pcp.training.trainer.slope_exchange import SlopeExchange
from pcp.training.trainer.step_exchange import StepExchange
from pcp.training.trainer.step_loop import Steps
from pcp.training_plan import EveryStep, Fragments, Never, TrainingPlan


class BundleTrainer:
    """A `Trainer` that runs a training bundle on a `pcp.runtime.Program`."""

    def __init__(
        self, program: Any, manifest: Manifest, background: Any | None = None
    ) -> None:
        """`background` is a second program of the bundle, for background exchanges."""
        check_bundle(manifest)
        plan = plan_of(manifest)
        if plan.in_background != (background is not None):
            raise BundleError(
                "a bundle with exchanges beside the inner steps runs as two programs; "
                "load it with BundleTrainer.load"
            )
        self.inputs = data_inputs(manifest)
        self.batch, self.block = batch_of(self.inputs), tokens_of_sample(self.inputs)
        self.parameter_shapes: Sequence[Sequence[int]] = [
            p.shape for p in manifest.parameters
        ]
        self.every_step = plan.synchronize == "step"
        self.functions = Functions(program)
        self.steps = Steps(program, manifest)
        second = (
            None if background is None else BackgroundExchange(Functions(background))
        )
        self.exchange = _exchange(plan, self.functions, self.steps, second)
        self.resumes = self.exchange.resumes
        self._parameters = manifest.parameters
        self._state: Arrays = {}

    @classmethod
    def load(cls, bundle: Any, device: str, target: str | None) -> Self:
        """Load the module for `target` on an IREE device, e.g. `local-task`.

        Without a target, the first module that the device can run.
        """
        from pcp.runtime.program.executor import Program

        program, background = Program.load(bundle, device=device, module=target), None
        if plan_of(bundle.manifest).in_background:
            again = {"device": program.device, "module": program.module}
            background = Program.load(bundle, **again)
        return cls(program, bundle.manifest, background)

    @property
    def progress(self) -> Sequence[int]:
        """Epochs in which a resuming round's exchanges were complete; -1: not yet."""
        return self.exchange.progress

    @property
    def waited(self) -> float:
        """Seconds that this round spent in exchanges between inner steps."""
        return self.exchange.sync_wait_timer.waited

    @property
    def inner_exchange(self) -> tuple[int, float | None]:
        """Exchanges in between that this round came to; seconds waited in the last."""
        return self.exchange.sync_wait_timer.now

    @property
    def shared(self) -> Arrays:
        """The state of all members: parameters that are not replicas, outer state."""
        return shared_part(self._state)

    @property
    def private(self) -> Arrays:
        """State of this worker's own, by name."""
        return under(PRIVATE, self._state)

    def fresh(self, seed: int) -> None:
        """Parameters and inner state from `@init`, outer state from `@outer_init`."""
        drawn = self.steps.initial(seed)
        parameters = {name: a for (role, name), a in drawn.items() if role == "param"}
        inner = {key: a for key, a in drawn.items() if key[0] == "state"}
        by_name = {name: a for (_, name), a in inner.items()}
        self._state = self.exchange.new_state(parameters, by_name)
        self.steps.hold(inner)

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Take a snapshot's shared state, and those of its others that are for us."""
        home = self.exchange.home
        if home != PARAMETER:
            snapshot = with_replica(snapshot, index)
        snapshot = as_masters(snapshot, self._parameters, PARAMETER)
        names = [p.name for p in self._parameters]
        if missing := [n for n in names if PARAMETER + n not in snapshot]:
            raise StateMismatch(
                f"the state to start from lacks the parameter {missing[0]!r}; "
                "was it made by another model?"
            )
        if not self._state:
            self.fresh(0)  # for the inner state, which a snapshot may lack
        parameters = {n: np.array(snapshot[PARAMETER + n]) for n in names}
        new = {home + n: array for n, array in parameters.items()}
        new |= {k: np.array(snapshot.get(k, old)) for k, old in self._outer.items()}
        check_like({k: self._state[k] for k in new}, new)
        self._state = new | self._restored(snapshot, index, parameters, new)
        self._restore_inner(snapshot, index)

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group from now on; one in the background may begin."""
        self.exchange.join(communicator, self._state)

    def begin(self, steps: int = 1, tokens: int = 1) -> None:
        """Local parameters := those of the state; so many steps and tokens."""
        self.exchange.begin(self._state, steps, tokens)

    def turn(self) -> None:
        """Exchanges that are due between two inner steps."""
        self.exchange.turn()

    def resume(self) -> None:
        """Go on with a round in another group; `UsageError` if it begins again."""
        self.exchange.resume()

    def step(self, batches: Sequence[Batch]) -> Any:
        """`@grad` on each batch, the mean of the gradients, `@apply`.

        Without a batch, where members meet in every step, a step on the others'.
        """
        tokens = self.batch * self.block * len(batches)
        return self.exchange.step([batch.tensors for batch in batches], tokens)

    def outer(self, tokens: float, communicator: Any) -> Arrays:
        """The state that the round makes, with the members of `communicator`."""
        return self.exchange.outer(tokens, communicator, self._state)

    def adopt(self, new: Arrays) -> None:
        """Make this the state; private state stays where `new` has none."""
        given = {name: old for name, old in self._state.items() if name in new}
        check_like(self.shared | given, new)
        self._state = {name: new.get(name, old) for name, old in self._state.items()}

    def catch_up(self, shared: Arrays) -> None:
        """Go over to newer shared state: θ_m moves along, to θ' + (θ_m - θ).

        So what `@outer_step` finds between its anchors and this worker's parameters is
        how far the inner steps went from where they began.
        """
        local = self.steps.held("param")
        for role, name in local:
            old, new = (s[PARAMETER + name] for s in (self._state, shared))
            if old.tobytes() == new.tobytes():
                continue
            own = np.asarray(local[role, name])
            moved = own.astype(np.float64) - old.astype(np.float64)
            at = (new.astype(np.float64) + moved).astype(new.dtype)
            self.steps.hold({(role, name): at})
        self.adopt(shared)

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state, by name, where it is one's own."""
        held = {} if self.every_step else self.steps.held("state")
        return {name: np.array(value) for (_, name), value in held.items()}

    def evaluate(self, batch: Batch) -> float:
        """The loss of the state's parameters on one batch."""
        parameters = under(self.exchange.home, self._state)
        values = {("param", name): array for name, array in parameters.items()}
        data = self.steps.data(batch.tensors)
        (loss,) = self.functions("eval", values | data).values()
        return float(np.asarray(loss))

    def close(self) -> None:
        """Release device arrays, then the programs."""
        self.steps.close()
        self.exchange.close()
        # Errors of failed exchanges hold arrays: see `BackgroundExchange.close`.
        gc.collect()
        self.functions.close()

    @property
    def _outer(self) -> Arrays:
        """The shared state but for the parameters."""
        held = shared_part(self._state)
        return {k: a for k, a in held.items() if not k.startswith(PARAMETER)}

    def _restored(
        self,
        snapshot: Mapping[str, np.ndarray],
        index: int,
        parameters: Mapping[str, np.ndarray],
        common: Arrays,
    ) -> Arrays:
        """Private state of the member `index`; tensors it lacks begin anew."""
        anew = self.exchange.new_state(parameters, {})
        old = {key: array for key, array in anew.items() if key not in common}
        new = {
            key: np.array(
                snapshot.get(f"{PRIVATE}{index}/{key.removeprefix(PRIVATE)}", array)
            )
            for key, array in old.items()
        }
        check_like(old, new)
        return new

    def _restore_inner(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        # Indices with a state: not every index, if some workers are away.
        places = sorted({int(n.split("/")[1]) for n in snapshot if n.startswith(INNER)})
        if not places:
            return
        place = index if index in places else places[index % len(places)]
        prefix = f"{INNER}{place}/"
        old = self.inner()
        new = {name: snapshot.get(prefix + name) for name in old}
        check_like(old, new)
        self.steps.hold({("state", name): np.array(new[name]) for name in old})


def loss_value(losses: Sequence[Any]) -> float:
    """The mean of losses that may still be on the device."""
    with np.errstate(invalid="ignore"):  # of infinities: NaN is said, not warned of
        return float(np.mean([np.asarray(x).astype(np.float64) for x in losses]))


def _exchange(
    plan: TrainingPlan,
    functions: Functions,
    steps: Steps,
    background: BackgroundExchange | None,
) -> Exchange:
    match plan:
        case EveryStep(seed=int() as seed):
            return SlopeExchange(seed, functions, steps)
        case EveryStep():
            return StepExchange(functions, steps)
        case Fragments():
            assert background is not None
            return FragmentExchange(plan, functions, steps, background)
        case Never(outer_step=False):
            return Exchange(functions, steps)
        case _:
            return RoundExchange(plan, functions, steps, background)
