"""A trainer whose outer step goes fragment by fragment, beside the inner steps.

    turn()    at a fragment's time to leave     @outer_send_p, then @outer_exchange_p
                                                beside the steps that follow
              at its time to come back          @outer_apply_p

The anchors and the outer state of a round are its own until they are adopted; the
local parameters live on from round to round, and are private state.

When a member dies, exchanges that were complete are so for everybody who is left
(that is what an exchange promises). The others' deltas are kept, and are exchanged
again in the next group; the inner steps go on from where they were.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from pcp.manifest import Function, Manifest
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import OUTER, PARAMETER, PRIVATE, shared_part
from pcp.training.trainer.background_exchange import Beside
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.fragment_schedule import Turn, timetable
from pcp.training.trainer.training_plan import plan_of

_PREFIX = {"anchor": PARAMETER, "outer": OUTER}
LOCAL = f"{PRIVATE}local."


class StreamingTrainer(BundleTrainer):
    """See the module."""

    resumes = True

    def __init__(self, program: Any, manifest: Manifest, beside: Any) -> None:
        super().__init__(program, manifest)
        plan = plan_of(manifest)
        assert plan.synchronize == "fragment"
        self._beside = Beside(beside)
        self._delay, self._together = plan.delay, plan.together
        self._members = [
            _named(manifest.functions[f"outer_send_{p}"], "param")
            for p in range(plan.count)
        ]
        self._turns: list[Turn] = []
        self._at = self._tokens = 0
        self._new: Arrays = {}
        self._sent: dict[int, Sequence[Any]] = {}
        self._under_way: dict[int, Future[Sequence[Any]]] = {}
        self._applied: set[int] = set()

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group from now on."""
        super().join(communicator)
        self._beside.join(communicator)

    @property
    def progress(self) -> int:
        """How many exchanges of the round are complete."""
        complete = [p for p in self._sent if p in self._applied or self._came(p)]
        return len(complete)

    def begin(self, steps: int = 1, tokens: int = 1) -> None:
        """Local parameters as the last round left them; nothing has left yet."""
        super().begin(steps, tokens)
        self._beside.settle()
        self._local = [self._device(self._private[LOCAL + n]) for n in self._names]
        count = len(self._members)
        self._turns = timetable(steps, count, self._delay, self._together)
        self._at, self._tokens, self._new = 0, tokens, dict(self._shared)
        self._sent, self._under_way, self._applied = {}, {}, set()

    def step(self, batches: Sequence[Any]) -> Any:
        """One inner step."""
        losses = super().step(batches)
        self._at += 1
        return losses

    def turn(self) -> None:
        """What is due now: fragments leave, and others are waited for."""
        for turn in self._turns:
            if turn.leaves <= self._at and turn.fragment not in self._sent:
                self._send(turn.fragment)
        for turn in self._turns:
            if turn.returns <= self._at and turn.fragment not in self._applied:
                self._apply(turn.fragment)

    def resume(self) -> None:
        """Go on with the round in another group: what did not get through is sent."""
        for p in self._sent:
            if p not in self._applied and not self._came(p):
                self._exchange(p)

    def outer(self, tokens: float, communicator: Any) -> Arrays:
        """What the round made of the state: by now every fragment came back."""
        own = map(np.asarray, self._local)
        return self._new | dict(zip(map(LOCAL.__add__, self._names), own, strict=True))

    def close(self) -> None:
        """Release device arrays, then the programs."""
        self._sent, self._under_way = {}, {}
        self._beside.close()
        super().close()

    def _came(self, fragment: int) -> bool:
        future = self._under_way[fragment]
        return future.done() and future.exception() is None

    def _send(self, fragment: int) -> None:
        given = self._fragment(fragment, f"outer_send_{fragment}")
        self._sent[fragment] = self._call(f"outer_send_{fragment}", *given)
        self._exchange(fragment)

    def _exchange(self, fragment: int) -> None:
        tokens = np.array(self._tokens, np.float32)
        self._under_way[fragment] = self._beside.call(
            f"outer_exchange_{fragment}", *self._sent[fragment], tokens
        )

    def _apply(self, fragment: int) -> None:
        with self._meetings.one():
            received = self._under_way[fragment].result()
        name = f"outer_apply_{fragment}"
        results = self._call(name, *self._fragment(fragment, name, received))
        for spec, value in zip(self._functions[name].results, results, strict=True):
            if spec.role == "param":
                self._local[self._names.index(spec.name)] = value
            else:
                self._new[_PREFIX[spec.role] + spec.name] = np.array(np.asarray(value))
        self._applied.add(fragment)

    def _fragment(
        self, fragment: int, name: str, received: Sequence[Any] = ()
    ) -> list[Any]:
        """The arguments of one of a fragment's functions."""
        members = self._members[fragment]
        kept = _named(self._functions[name], "outer")
        values = {
            "anchor": [self._new[PARAMETER + n] for n in members],
            "param": [self._local[self._names.index(n)] for n in members],
            "outer": [self._new[OUTER + n] for n in kept],
            "received": received,
        }
        return self._arguments(name, values)

    def _new_outer_state(self, parameters: Sequence[np.ndarray]) -> Arrays:
        """Outer state as at the beginning; a newcomer's parameters are those of all."""
        new = shared_part(super()._new_outer_state(parameters))
        own = [np.array(p) for p in parameters]
        return new | {LOCAL + n: p for n, p in zip(self._names, own, strict=True)}


def _named(function: Function, role: str) -> list[str]:
    """The names of the inputs with this role."""
    return [t.name for t in function.inputs if t.role == role]
