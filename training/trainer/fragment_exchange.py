"""An outer step fragment by fragment, beside the inner steps.

    turn()    when a fragment leaves     @outer_send_p, then @outer_exchange_p beside
                                         the steps that follow
              when it comes back         @outer_apply_p

The anchors and the outer state of a round take effect when they are adopted; the local
parameters stay from round to round, and are private state.

When a member dies, completed exchanges are complete for all remaining members, as
operations guarantee. The deltas of the other exchanges are kept, and are exchanged
again in the next group; the inner steps go on from their present place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import PRIVATE, prefixed, shared_part
from pcp.training.trainer.background_exchange import BackgroundExchange, Results
from pcp.training.trainer.exchange import Exchange, by_name, by_port, weighted
from pcp.training.trainer.fragment_schedule import Turn, timetable
from pcp.training.trainer.functions import Functions, Key
from pcp.training.trainer.step_loop import Steps
from pcp.training.trainer.sync_wait_timer import SyncWaitTimer
from pcp.training_plan import Fragments

LOCAL = f"{PRIVATE}local."


class FragmentExchange(Exchange):
    """The strategy of streaming algorithms; see the module."""

    resumes = joins = True

    def __init__(
        self,
        plan: Fragments,
        functions: Functions,
        steps: Steps,
        background: BackgroundExchange,
    ) -> None:
        super().__init__(functions, steps)
        self._plan, self._background = plan, background
        self._turns: list[Turn] = []
        self._at, self._weight = 0, 1.0
        self._new: Arrays = {}
        self._sent: dict[int, dict[Key, Any]] = {}
        self._pending: dict[int, Results] = {}
        self._epoch, self._epochs = 0, dict[int, int]()
        """The epoch of the group, and those in which fragments were exchanged."""
        self._applied: set[int] = set()

    def new_state(
        self, parameters: Mapping[str, np.ndarray], inner: Mapping[str, np.ndarray]
    ) -> Arrays:
        """The first state; the private parameters of a newcomer are the shared ones."""
        new = shared_part(super().new_state(parameters, inner))
        own = map(np.array, parameters.values())
        return new | prefixed(LOCAL, list(parameters), own)

    def join(self, communicator: Any, state: Arrays) -> None:
        """Exchanges go to this group from now on."""
        super().join(communicator, state)
        self._background.join(communicator)
        self._epoch = communicator.epoch

    @property
    def progress(self) -> Sequence[int]:
        """By fragment, the epoch in which its exchange was complete, or -1."""
        complete = {p for p in self._sent if p in self._applied or self._came(p)}
        return [
            self._epochs[p] if p in complete else -1 for p in range(self._plan.count)
        ]

    def begin(self, state: Arrays, steps: int, weight: float) -> None:
        """Begin a round: local parameters of the last round, no fragment sent yet."""
        self.sync_wait_timer = SyncWaitTimer()
        self._background.settle()
        self.localize(state, LOCAL)
        plan = self._plan
        self._turns = timetable(steps, plan.count, plan.delay, plan.together)
        self._at, self._weight, self._new = 0, weight, shared_part(state)
        self._sent, self._pending, self._applied = {}, {}, set()
        self._epochs = {}

    def step(self, batches: Sequence[Arrays]) -> list[Any]:
        """One inner step."""
        losses = super().step(batches)
        self._at += 1
        return losses

    def turn(self) -> None:
        """Make the turns that are due: send fragments, and wait for others."""
        for turn in self._turns:
            if turn.leaves <= self._at and turn.fragment not in self._sent:
                self._send(turn.fragment)
        for turn in self._turns:
            if turn.returns <= self._at and turn.fragment not in self._applied:
                self._apply(turn.fragment)

    def resume(self, weight: float) -> None:
        """Resume the round in another group: send incomplete fragments again."""
        self._weight = weight
        for p in self._sent:
            if p not in self._applied and not self._came(p):
                self._exchange(p)

    def outer(self, weight: float, communicator: Any, state: Arrays) -> Arrays:
        """The new state of the round: every fragment has come back by now."""
        return self._new | self.local("param", LOCAL)

    def close(self) -> None:
        """Release arrays on the device, and the second program."""
        self._sent, self._pending = {}, {}
        self._background.close()

    def _came(self, fragment: int) -> bool:
        future = self._pending[fragment]
        return future.done() and future.exception() is None

    def _values(self) -> dict[Key, Any]:
        """The arguments of all fragments' functions from the state."""
        return by_port(self._new) | self._steps.held("param")

    def _send(self, fragment: int) -> None:
        sent = self._functions(f"outer_send_{fragment}", self._values())
        self._sent[fragment] = sent
        self._exchange(fragment)

    def _exchange(self, fragment: int) -> None:
        self._epochs[fragment] = self._epoch
        values = self._sent[fragment] | weighted(self._weight)
        call = self._background.call
        self._pending[fragment] = call(f"outer_exchange_{fragment}", values)

    def _apply(self, fragment: int) -> None:
        with self.sync_wait_timer.one():
            received = self._pending[fragment].result()
        values = self._values() | received
        results = self._functions(f"outer_apply_{fragment}", values)
        own = {key: v for key, v in results.items() if key[0] == "param"}
        common = {key: v for key, v in results.items() if key[0] != "param"}
        self._steps.take(own)
        self._new |= by_name(common, self.home)
        self._applied.add(fragment)
