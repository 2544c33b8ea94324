"""Exchanges of a member with its group: a strategy for each training plan.

    join(group)          the members from now on
    begin(steps, weight) local parameters := those of the state
    step(batches) x H    @grad, the exchange of every step, @apply
    turn()               between two inner steps: exchanges that are due
    outer(weight)        the new state of the round

`Exchange` is the strategy without exchanges. No strategy keeps state from round to
round: the trainer passes the state, by the names of `pcp.training.storage.state_names`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.errors import UsageError
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.program.gossip_pair import Pair, partners
from pcp.training.storage.island_parts import WHOLE
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    OUTER,
    PARAMETER,
    PRIVATE,
    REPLICA,
    STATE,
    prefixed,
)
from pcp.training.trainer.background_exchange import BackgroundExchange, Results
from pcp.training.trainer.functions import Functions, Key, Values
from pcp.training.trainer.norms import distance, length, norm, share
from pcp.training.trainer.step_loop import MODEL_STATE, Steps
from pcp.training.trainer.sync_wait_timer import SyncWaitTimer
from pcp.training_plan import Asynchronous, EveryRound, Never

_REPLICA = PRIVATE + REPLICA
_PREFIX = {
    "replica": _REPLICA,
    "anchor": PARAMETER,
    MODEL_STATE: STATE,
    "outer": OUTER,
    "private": PRIVATE,
}
TOKENS: Key = ("tokens", "tokens")
_ROUNDS = f"{OUTER}rounds"


def by_port(state: Mapping[str, Any]) -> dict[Key, Any]:
    """A state's tensors by the roles of functions' arguments."""
    found = {}
    for name, array in state.items():
        pairs = _PREFIX.items()
        role, prefix = next((r, p) for r, p in pairs if name.startswith(p))
        found[role, name.removeprefix(prefix)] = array
    return found


def by_name(results: Values, home: str) -> Arrays:
    """A function's results by the state's names, on the host; parameters at `home`."""
    prefixes = _PREFIX | {"param": home}
    return {prefixes[role] + name: np.asarray(v) for (role, name), v in results.items()}


def weighted(weight: float) -> dict[Key, np.ndarray]:
    """The weight of this member beside the others', as an array."""
    return {TOKENS: np.array(weight, np.float32)}


class Exchange:
    """The strategy without exchanges: the inner steps make the new state."""

    resumes = False
    joins = False
    """Whether members are joined; without it there is no outer state."""
    home = PARAMETER
    """The prefix of the parameters in the state: shared, or private."""
    parts = WHOLE
    """How the ranks of an island hold the tensors."""

    def __init__(self, functions: Functions, steps: Steps) -> None:
        self._functions, self._steps = functions, steps
        self.sync_wait_timer = SyncWaitTimer()
        self.left = 0
        """The inner steps of this round that are still to be made."""
        self.gradient_norm: float | None = None
        """The norm of the last inner step's gradient; None before it, or without."""

    @property
    def progress(self) -> Sequence[int]:
        """No exchange of a round is complete before the round is."""
        return ()

    def new_state(
        self, parameters: Mapping[str, np.ndarray], inner: Mapping[str, np.ndarray]
    ) -> Arrays:
        """The first state, with the first values of the parameters.

        `inner` is the inner optimizer's state.
        """
        new = prefixed(self.home, list(parameters), parameters.values())
        if not (self.joins and self._functions.gives("outer_init")):
            return new
        values = {("param", name): array for name, array in parameters.items()}
        made = by_name(self._functions("outer_init", values), self.home)
        return new | {name: np.array(array) for name, array in made.items()}

    def join(self, communicator: Any, state: Arrays) -> None:
        """Use this group for exchanges from now on."""
        self._functions.program.communicator = communicator

    def begin(self, state: Arrays, steps: int, weight: float) -> None:
        """Begin a round of so many inner steps, which weigh so much in it."""
        self.sync_wait_timer = SyncWaitTimer()
        self.localize(state, self.home)

    def localize(self, state: Arrays, prefix: str) -> None:
        """Set the local parameters to those under the prefix."""
        keys = self._steps.trained
        self._steps.hold({key: state[prefix + key[1]] for key in keys})

    def step(self, batches: Sequence[Arrays]) -> list[Any]:
        """Make one inner step on these batches; returns their losses."""
        losses, gradients = self.gradients(batches)
        self.left -= 1
        if not self.left:  # @apply may reuse the buffers
            self.gradient_norm = self.norm_of(gradients)
        self._steps.apply(gradients)
        return losses

    def gradients(self, batches: Sequence[Arrays]) -> tuple[list[Any], dict[Key, Any]]:
        """The losses and the mean of the gradients."""
        pairs = [self._steps.gradients(batch) for batch in batches]
        losses, found = [loss for loss, _ in pairs], [grads for _, grads in pairs]
        return losses, found[0] if len(found) == 1 else self._mean(found)

    def norm_of(self, gradients: Values) -> float | None:
        """The L2 norm of the gradients for `@apply`, or None without gradients.
        On an island's rank, its share.
        """
        found = {
            port: np.asarray(g) for port, g in gradients.items() if port[0] == "grad"
        }
        holders = self.parts.holders
        return norm(share(length(g), holders(port)) for port, g in found.items())

    def moved(self, state: Arrays) -> float:
        """The L2 norm of the local parameters' change; on a rank, its share."""
        return norm(
            share(
                distance(np.asarray(value), state[self.home + port[1]]),
                self.parts.holders(port),
            )
            for port, value in self._steps.held("param").items()
        )

    def turn(self) -> None:
        """Nothing is due between two inner steps."""

    def resume(self, weight: float) -> None:
        """UsageError: a round without inner exchanges begins again."""
        raise UsageError("this round cannot be resumed in mid-way")

    def outer(self, weight: float, communicator: Any, state: Arrays) -> Arrays:
        """The new state of a round that ends in the group of `communicator`."""
        self._functions.program.communicator = communicator
        return self.local("param", self.home)

    def local(self, role: str, prefix: str) -> Arrays:
        """A role's tensors after the inner steps, on the host, under the prefix."""
        held = self._steps.held(role)
        return {prefix + name: np.asarray(v) for (_, name), v in held.items()}

    def close(self) -> None:
        """Release arrays on the device, and a second program."""

    def _mean(self, found: Sequence[Values]) -> dict[Key, np.ndarray]:
        """The mean over batches, summed in float64 and rounded once; or zeros."""
        ports = self._functions.signatures["apply"].inputs
        return {
            t.key: _mean([np.asarray(gradients[t.key]) for gradients in found])
            if found
            else np.zeros(t.shape, numpy_dtype(t.dtype))
            for t in ports
            if t.role == "grad"
        }


class RoundExchange(Exchange):
    """`@outer_step` after the inner steps of a round.

    Replicas are private state, under `replica.<name>`; the members share the rest of
    the outer state, which counts the rounds. Pairs are drawn from the plan's seed and
    the round, so that a resumed run draws the same pairs. A round that lost a member
    has other pairs.
    """

    joins = True

    def __init__(
        self,
        plan: EveryRound | Asynchronous | Never,
        functions: Functions,
        steps: Steps,
        background: BackgroundExchange | None = None,
    ) -> None:
        super().__init__(functions, steps)
        self._background = background
        self._pending: Results | None = None
        self._pairs: int | None = None
        if isinstance(plan, EveryRound):
            self._pairs = plan.seed
            self.home = PARAMETER if plan.parameters == "shared" else _REPLICA

    def join(self, communicator: Any, state: Arrays) -> None:
        """Use this group for exchanges; with overlap `@outer_early` starts at once."""
        group = self._group(communicator, state)
        super().join(group, state)
        if self._background is not None:
            self._background.join(group)
            self._pending = self._background.call("outer_early", by_port(state))

    def outer(self, weight: float, communicator: Any, state: Arrays) -> Arrays:
        """`@outer_step` with the members of `communicator`, or a pair of them."""
        self._functions.program.communicator = self._group(communicator, state)
        values = by_port(state) | self._steps.held("param") | weighted(weight)
        if self._pending is not None:
            values |= self._pending.result()
        return by_name(self._functions("outer_step", values), self.home)

    def close(self) -> None:
        """Release arrays on the device, and a second program."""
        self._pending = None
        if self._background is not None:
            self._background.close()

    def _group(self, communicator: Any, state: Arrays) -> Any:
        if self._pairs is None:
            return communicator
        turn = int(state[_ROUNDS])
        matching = partners(communicator.world_size, self._pairs, turn)
        return {"pair": Pair(communicator, matching[communicator.rank], turn)}


def _mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total = np.sum([a.astype(np.float64) for a in arrays], axis=0)
    return (total / len(arrays)).astype(arrays[0].dtype)
