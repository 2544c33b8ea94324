"""The trainer of a worker: the functions of a training bundle, called in order.

    restore(snapshot) or fresh(seed)
    join(communicator)          the group of the round
    begin()                     local parameters := those of the state
    step(batches) x H           @grad on each batch, perhaps @grad_sync, then @apply
    outer(weight)               @outer_step, a collective among the members
    adopt(new)                  the committed state becomes the state

The program's state is each worker's own during inner steps; `outer` joins those of all
members by `@state_sync`. `freeze` sets the frozen tensors.

An `Exchange` decides what is exchanged and when, by the training plan of the bundle.
The state is in host arrays, since it is compared, sent and saved; local parameters and
the inner optimizer's state are on the device. A round that is not adopted leaves the
state unchanged, and `outer` can be repeated: it consumes nothing.
"""

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from pcp import learning_rate
from pcp.errors import BundleError, StateMismatch
from pcp.manifest import Manifest
from pcp.training.data.dataset import Batch, batch_of, tokens_of_sample
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    FROZEN,
    INNER,
    OF_A_ROUND,
    OUTER,
    PARAMETER,
    PRIVATE,
    STATE,
    as_masters,
    averaged,
    check_like,
    like,
    shared_part,
    under,
)
from pcp.training.trainer import brought, draw_key, program_state, step_loop
from pcp.training.trainer.background_exchange import BackgroundExchange
from pcp.training.trainer.bundle_checks import (
    check_bundle,
    data_inputs,
    model_shapes,
    plan_of,
)
from pcp.training.trainer.exchange import Exchange, RoundExchange, weighted
from pcp.training.trainer.fragment_exchange import FragmentExchange
from pcp.training.trainer.functions import Functions, Key
from pcp.training.trainer.replica import with_replica
from pcp.training.trainer.slope_exchange import SlopeExchange
from pcp.training.trainer.step_exchange import StepExchange
from pcp.training.trainer.step_loop import MODEL_STATE, Steps
from pcp.training_plan import EveryStep, Fragments, Never, TrainingPlan


class BundleTrainer:
    """A `Trainer` that runs a training bundle on a `pcp.runtime.Program`."""

    def __init__(
        self,
        program: Any,
        manifest: Manifest,
        background: Any | None = None,
        coordinate: int = 0,
        plan: TrainingPlan | None = None,
    ) -> None:
        """`background` is a second program of the bundle, for background exchanges.

        For a bundle that is spread over an island this is the rank at `coordinate`.
        A `plan` is for a fixed world, in place of the bundle's: there a batch is what
        a run counts, whatever it holds.
        """
        fixed = plan is not None
        if plan is None:
            check_bundle(manifest)
            plan = plan_of(manifest)
        self.parts, self._coordinate = IslandParts.of(manifest), coordinate
        if plan.in_background != (background is not None):
            raise BundleError(
                "a bundle with exchanges beside the inner steps runs as two programs; "
                "load it with BundleTrainer.load"
            )
        self.inputs = data_inputs(manifest)
        self.batch = 1 if fixed else batch_of(self.inputs)
        self.block = 1 if fixed else tokens_of_sample(self.inputs)
        self.parameter_shapes: Sequence[Sequence[int]] = model_shapes(manifest)
        self.rows: Mapping[str, int] = manifest.rows
        self._optimizer = manifest.optimizer
        self.every_step = plan.synchronize == "step"
        self.functions = Functions(program)
        mesh = self.parts.mesh
        self.axes_inside: Sequence[tuple[str, ...]] = self.parts.axes_inside(manifest)
        self.steps = Steps(program, manifest, mesh, mesh.members[coordinate])
        second = (
            None if background is None else BackgroundExchange(Functions(background))
        )
        self.exchange = _exchange(plan, self.functions, self.steps, second)
        self.exchange.parts = self.parts
        self.resumes = self.exchange.resumes
        own = set(self.steps.trained)
        self._parameters = [p for p in manifest.parameters if ("param", p.name) in own]
        self._key = step_loop.key_of_program(manifest)
        self._brought = step_loop.brought(self.functions.signatures)
        self._counted = program_state.counted(manifest)
        self._state: Arrays = {}
        self._first: Arrays = {}
        """The first values of the program's state, by name."""
        self._given: dict[Key, np.ndarray] = {}
        """The values that came with the model."""
        self.seed: int | None = None
        """The run's seed, which a program that draws random numbers needs."""
        self.evaluates_averages = True

    @classmethod
    def load(
        cls,
        bundle: Any,
        device: str,
        target: str | None,
        coordinate: int = 0,
        plan: TrainingPlan | None = None,
        host: Any | None = None,
    ) -> Self:
        """Load the module for `target` on an IREE device, e.g. `local-task`.

        Without a target, the first module that the device can run. For a bundle that is
        spread over an island, the program of the rank at `coordinate`. `host` binds the
        functions that the program calls on the host.
        """
        from pcp.runtime.program.executor import Program

        manifest, member = bundle.manifest, None
        if manifest.programs:
            member = manifest.partition_mesh().devices[coordinate]
            target = None  # the bundle names the module of each rank
        load = partial(Program.load, bundle, module=target, member=member, host=host)
        program, background = load(device=device), None
        if (plan or plan_of(manifest)).in_background:
            again = {"device": program.device, "module": program.module}
            background = load(**again)
        return cls(program, manifest, background, coordinate, plan)

    @property
    def progress(self) -> Sequence[int]:
        """The epochs of complete exchanges of a resumed round; -1: not complete."""
        return self.exchange.progress

    @property
    def waited(self) -> float:
        """Seconds that this round spent in inner exchanges."""
        return self.exchange.sync_wait_timer.waited

    @property
    def inner_exchange(self) -> tuple[int, float | None]:
        """Inner exchanges that this round has entered; seconds waited in the last."""
        return self.exchange.sync_wait_timer.now

    @property
    def shared(self) -> Arrays:
        """The state of all members: parameters that are not replicas, outer state."""
        return shared_part(self._state)

    @property
    def private(self) -> Arrays:
        """The private state of this worker, by name."""
        return under(PRIVATE, self._state)

    @property
    def frozen(self) -> Arrays:
        """The frozen tensors, and first values of state that came with the model.

        Parameters are not among them: a worker that fetches them has a state.
        """
        return {n: a for (role, n), a in self._given.items() if role != "param"}

    def freeze(self, given: Mapping[str, np.ndarray]) -> None:
        """Take values that come with the model; see `brought.taken`."""
        wanted, parts = self._brought, self.parts
        self._given = brought.taken(given, wanted, parts, self._coordinate)
        self.steps.hold({k: a for k, a in self._given.items() if k[0] == "frozen"})
        self._first |= {
            STATE + n: a for (role, n), a in self._given.items() if role == MODEL_STATE
        }

    def fresh(self, seed: int) -> None:
        """Parameters and inner state from `@init`, outer state from `@outer_init`."""
        self._begin_with(None, seed)

    def _begin_with(self, parameters: Arrays | None, seed: int) -> None:
        """Set the state before the first round, from the parameters.

        Parameters that are None are made from the seed.
        """
        given = {key: a for key, a in self._given.items() if key[0] == "param"}
        given |= {("param", n): a for n, a in (parameters or {}).items()}
        brought.check(self._brought, self._given | given)
        self._begin_as(self.steps.initial(seed, given or None))

    def start(self, seed: int, given: Arrays) -> None:
        """Begin with whole tensors in `given`, and what follows from the seed."""
        first = self.steps.first(seed, given)
        self._given = {t.key: first[t.key] for t in self._brought}
        self.steps.hold({k: a for k, a in self._given.items() if k[0] == "frozen"})
        self.seed = seed
        self._begin_as(first)

    def _begin_as(self, drawn: Mapping[Key, np.ndarray]) -> None:
        """Set the state before the first round."""
        by_role = {
            role: {name: a for (r, name), a in drawn.items() if r == role}
            for role in ("param", "state", MODEL_STATE)
        }
        inner, state = by_role["state"], by_role[MODEL_STATE]
        self._first |= {STATE + name: array for name, array in state.items()}
        self._state = self.exchange.new_state(by_role["param"], inner) | self._first
        self.steps.hold({("state", name): array for name, array in inner.items()})

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Take a snapshot's shared state, and this worker's parts of the rest.

        With a snapshot of values that come with the model alone, begin from the seed.
        """
        frozen = under(FROZEN, snapshot)
        if frozen and not self._given:
            self.freeze(frozen)
        if frozen and not any(name.startswith(OF_A_ROUND) for name in snapshot):
            return self.fresh(self._seed())
        snapshot = self.parts.cut(snapshot, self._coordinate)
        home = self.exchange.home
        if home != PARAMETER:
            snapshot = with_replica(snapshot, index)
        snapshot = as_masters(snapshot, self._parameters, PARAMETER)
        names = [p.name for p in self._parameters]
        if missing := [n for n in names if PARAMETER + n not in snapshot]:
            raise StateMismatch(
                f"the state to start from lacks {len(missing)} of {len(names)} "
                f"parameters: {', '.join(map(repr, missing[:12]))}; was it made by "
                "another model?"
            )
        parameters = {n: np.array(snapshot[PARAMETER + n]) for n in names}
        takes = self.functions.signatures["grad"].inputs
        parts = {PARAMETER + t.name: like(t) for t in takes if t.role == "param"}
        check_like(parts, snapshot)
        behind = (STATE, OUTER, PRIVATE, INNER)
        trained = any(name.startswith(behind) for name in snapshot)
        if not (trained and self._state):  # weights alone: the rest begins with them
            self._begin_with(parameters, self.seed or 0)
        new = {home + n: array for n, array in parameters.items()}
        new |= {k: np.array(snapshot.get(k, old)) for k, old in self._outer.items()}
        new |= program_state.of_snapshot(snapshot, self._first)
        check_like({k: self._state[k] for k in new}, new)
        self._state = new | self._restored(snapshot, index, parameters, new)
        self._restore_inner(snapshot, index)

    def join(self, communicator: Any) -> None:
        """Use this group for exchanges; a background exchange may begin."""
        self.exchange.join(communicator, self._state)

    def begin(self, steps: int = 1, weight: float = 1.0) -> None:
        """Begin a round of `steps` of a weight: local parameters := the state's."""
        self.exchange.begin(self._state, steps, weight)
        self.exchange.left, self.exchange.gradient_norm = steps, None
        state = under(STATE, self._state)
        self.steps.hold({(MODEL_STATE, n): np.array(a) for n, a in state.items()})
        self.steps.metrics.clear()

    def turn(self) -> None:
        """Make the exchanges that are due between two inner steps."""
        self.exchange.turn()

    def resume(self, weight: float = 1.0) -> None:
        """Go on with a round in another group; `UsageError` if it begins again."""
        self.exchange.resume(weight)

    def step(self, batches: Sequence[Batch]) -> Any:
        """`@grad` on each batch, the mean of the gradients, `@apply`.

        Without a batch, a step on the other members' gradients.
        """
        return self.exchange.step([self._named(batch) for batch in batches])

    @property
    def moved(self) -> float:
        """The L2 norm of the inner steps' change; on an island's rank, its share."""
        return self.exchange.moved(self._state)

    @property
    def gradient_norm(self) -> float | None:
        """The L2 norm of the last step's unclipped gradient; on a rank, its share."""
        return self.exchange.gradient_norm

    @property
    def learning_rate(self) -> float | None:
        """The rate of the last inner step; None where it is not known."""
        made = self.steps.held("state").get(("state", "step"))
        step = None if made is None else int(np.asarray(made))
        return learning_rate.rate(self._optimizer, step)

    def outer(self, weight: float, communicator: Any) -> Arrays:
        """The new state of the round, made with the members of `communicator`."""
        new = self.exchange.outer(weight, communicator, self._state)
        return new | self._joined_state(weight)

    def _joined_state(self, weight: float) -> Arrays:
        """The program's state, joined over all members; this member's own if alone."""
        held = self.steps.held(MODEL_STATE)
        if self.exchange.joins and self.functions.gives(program_state.SYNC):
            before = {("anchor", n): self._state[STATE + n] for n in self._counted}
            held = self.functions(program_state.SYNC, held | before | weighted(weight))
        return {STATE + name: np.asarray(v) for (_, name), v in held.items()}

    @property
    def metrics(self) -> dict[str, int | float]:
        """Metrics of the steps since the round began: means, and sums of integers."""
        return program_state.summary(self.steps.metrics)

    def adopt(self, new: Arrays) -> None:
        """Make this the state; private state stays where `new` has none."""
        given = {name: old for name, old in self._state.items() if name in new}
        check_like(self.shared | given, new)
        self._state = {name: new.get(name, old) for name, old in self._state.items()}

    def catch_up(self, shared: Arrays) -> None:
        """Change to a newer shared state: θ_m moves along, to θ' + (θ_m - θ).

        So the difference of this worker's parameters from the anchors of `@outer_step`
        is the delta of its inner steps.
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
        held = self.steps.held(MODEL_STATE)
        for name in self._counted if held else ():
            old, new = (s[STATE + name] for s in (self._state, shared))
            moved = np.asarray(held[MODEL_STATE, name]) - old
            self.steps.hold({(MODEL_STATE, name): np.asarray(new + moved)})
        self.adopt(shared)

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state by name, if it is this worker's own."""
        held = {} if self.every_step else self.steps.held("state")
        return {name: np.array(value) for (_, name), value in held.items()}

    def evaluate(self, batch: Batch) -> float:
        """The loss of the state's parameters on one batch, or of their averages."""
        values: dict[Key, Any] = dict(self.steps.held("frozen"))
        state, own = under(STATE, self._state), under(self.exchange.home, self._state)
        params = {p.name: own[p.name] for p in self._parameters}
        if self.evaluates_averages:
            params = averaged(params, state)
        for role, held in (("param", params), (MODEL_STATE, state)):
            values |= {(role, name): array for name, array in held.items()}
        data = self.steps.data(self._named(batch))
        found = self.functions("eval", values | data)
        (loss,) = [value for (role, _), value in found.items() if role == "loss"]
        return float(np.asarray(loss))

    def close(self) -> None:
        """Release device arrays, then the programs."""
        self.steps.close()
        self.exchange.close()
        # Errors of failed exchanges hold arrays: see `BackgroundExchange.close`.
        gc.collect()
        self.functions.close()

    def _named(self, batch: Batch) -> Arrays:
        """A batch by the names of the model's data, with the draw key."""
        named = dict(batch.tensors)
        if self._key is not None:
            drawn = draw_key.keys(self._key, self._seed(), batch.positions)
            named[self._key.name] = drawn
        return named

    def _seed(self) -> int:
        if self.seed is None:
            raise BundleError("the program draws random numbers, and has no seed")
        return self.seed

    @property
    def _outer(self) -> Arrays:
        """The outer algorithm's shared state."""
        return {k: a for k, a in self._state.items() if k.startswith(OUTER)}

    def _restored(
        self,
        snapshot: Mapping[str, np.ndarray],
        index: int,
        parameters: Mapping[str, np.ndarray],
        common: Arrays,
    ) -> Arrays:
        """The private state of the member `index`; missing tensors begin anew."""
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
        # Indices with a state: not every index, if some workers are absent.
        places = sorted({int(n.split("/")[1]) for n in snapshot if n.startswith(INNER)})
        if not places:
            return
        place = index if index in places else places[index % len(places)]
        prefix = f"{INNER}{place}/"
        old = self.inner()
        new = {name: snapshot.get(prefix + name) for name in old}
        check_like(old, new)
        self.steps.hold({("state", name): np.array(new[name]) for name in old})


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
