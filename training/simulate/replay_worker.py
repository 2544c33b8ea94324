"""A worker of a replayed run: the worker's own code, without a shepherd."""

import threading
from collections.abc import Sequence

from pcp.errors import RuntimeFault
from pcp.runtime import Endpoint
from pcp.training.data.corpus import Corpus
from pcp.training.data.lease_pool import Range
from pcp.training.trainer.interface import Trainer
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    GroupFailed,
    LeaseGrant,
    Prepared,
    RoundStart,
)
from pcp.training.worker.round_runner import RoundRunner
from pcp.training.worker.worker_state import WorkerState

_TIMEOUT_SECONDS = 120.0
_NEVER = 1 << 63
"""An epoch that no group has."""


class ReplayWorker:
    """One recorded worker, or rank of an island."""

    def __init__(self, trainer: Trainer, corpus: Corpus) -> None:
        self.trainer = trainer
        self.state = WorkerState()
        self.state.load(trainer)
        self._endpoint = Endpoint.listen("127.0.0.1:0")
        self._endpoint.serve_snapshot(self.state.snapshot)
        self._said: list[Message] = []
        self._stopped = threading.Event()
        self._runner = RoundRunner(
            self.state,
            self._endpoint,
            send=self._said.append,
            log=lambda text: None,
            newest=lambda: None,
            called_off=self._stopped.is_set,
        )
        self._runner.inner_steps.corpus = corpus
        self._runner.group.timeout = _TIMEOUT_SECONDS

    @property
    def address(self) -> str:
        """The address at which peers reach it."""
        return self._endpoint.address

    def learn(self, lease: Sequence[Range], steps: int) -> None:
        """Make inner steps from the present state, unless they are made."""
        self._runner.learn(LeaseGrant(turn=0, lease=list(lease), steps=steps))

    def replace(self, trainer: Trainer, corpus: Corpus) -> None:
        """Use another program, with the present state."""
        self.state.exchange(trainer)
        self.trainer, self._runner.inner_steps.corpus = trainer, corpus

    def make(self, order: RoundStart) -> Prepared:
        """Carry out an order."""
        self._said.clear()
        self._runner.attempt(order)
        for said in self._said:
            if isinstance(said, GroupFailed):
                raise RuntimeFault(
                    f"round {order.round} cannot be made again: {said.reason}"
                )
            if isinstance(said, Prepared):
                return said
        raise RuntimeFault(
            f"round {order.round} cannot be made again: this worker holds round "
            f"{self.state.committed}"
        )

    def stop(self) -> None:
        """Stop making steps and waiting for peers; from any thread."""
        self._stopped.set()
        self._runner.group.abandon(_NEVER)

    def close(self) -> None:
        """Release the device and the endpoint."""
        self._runner.inner_steps.close()
        self._runner.group.close()
        self._endpoint.close()
        self.trainer.close()
