"""The batches of a fixed world, each as it was given.

Worker w of n takes the batches w, w + n, w + 2n, and so on. A position counts whole
batches: step s of worker w of a run of so many steps is at w * steps + s.
"""

from collections.abc import Sequence

import numpy as np

from pcp.errors import counted
from pcp.manifest import Manifest
from pcp.training.data.dataset import Batch
from pcp.training.trainer.step_loop import Arrays, batch_of, key_of_program

Range = tuple[int, int]


class BatchSource:
    """The data of a run of `steps` for each of its workers, from given tensors."""

    ahead = readers = 0
    """No batch is read ahead: they are in memory."""

    def __init__(
        self, manifest: Manifest, given: Arrays, steps: int, workers: int = 1
    ) -> None:
        data = [t for t in manifest.function("grad").inputs if t.role == "data"]
        held = {t.name: len(t.shape) for t in data if t.name in given}
        counts = [len(given[n]) for n, rank in held.items() if given[n].ndim > rank]
        self.count = max(counts, default=1)
        """How many batches are given."""
        self.takes = bool(data)
        """Whether the program takes data at all."""
        self._manifest, self._given = manifest, given
        self._names = [t.name for t in data]
        self._made: dict[int, dict[str, np.ndarray]] = {}
        self._steps, self._workers = steps, workers
        key = key_of_program(manifest)
        self._pieces = 1 if key is None or len(key.shape) < 2 else key.shape[0]

    def check(self) -> None:
        """`UsageError` where a batch that the run takes does not fit the program."""
        for number in range(min(max(self.count, 1), self._steps * self._workers)):
            self._batch(number)

    def shared(self) -> str | None:
        """Why workers train on the same batch, where there are fewer than workers."""
        if not self.takes or self.count >= self._workers:
            return None
        return (
            f"{counted(self.count, 'batch')} for {self._workers} workers: some of them "
            "train on the same one"
        )

    def lease(self, worker: int, begin: int, end: int) -> list[Range]:
        """The positions of a worker's steps from `begin` up to `end`."""
        first = worker * self._steps
        return [(first + begin, first + end)]

    def read(self, positions: Sequence[int] | np.ndarray) -> Batch:
        """The batch at the one position; its own positions are its draw key's."""
        (at,) = positions
        worker, step = divmod(int(at), self._steps)
        number = step * self._workers + worker
        pieces = np.arange(number * self._pieces, (number + 1) * self._pieces)
        return Batch(self._batch(number), pieces)

    def _batch(self, number: int) -> dict[str, np.ndarray]:
        """The whole data of batch `number`, in the program's types."""
        at = number % max(self.count, 1)
        if at not in self._made:
            made = batch_of(self._manifest, self._given, at)
            self._made[at] = {name: made[name] for name in self._names}
        return self._made[at]
