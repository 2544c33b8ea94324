"""Checkpoints and initial weights on the shepherd's disk, handed out to workers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pcp.errors import BundleError, StateMismatch
from pcp.runtime.transport.signatures import ANYBODY, Trust
from pcp.signing import CHECKPOINT
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.events import Found, Loaded, OnDisk, SavedState
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import first_values, safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.checkpoint_resharding import reshard
from pcp.training.storage.island_parts import WHOLE, IslandParts
from pcp.training.storage.island_shapes import IslandShapes, cut_of
from pcp.training.storage.ledger import Ledger
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.snapshots import shared_of, snapshot_of


class StateServer:
    """Hands out one state at a time, through the shepherd's endpoint."""

    def __init__(
        self,
        endpoint: Any,
        folder: RunFolder,
        ledger: Ledger,
        experiment: Experiment,
        parts: Callable[[], IslandParts | IslandShapes] = lambda: WHOLE,
        trust: Trust = ANYBODY,
    ) -> None:
        """`parts()` says how the ranks of an island cut a state.

        Checkpoints must have a signature that counts for `trust`.
        """
        self._trust = trust
        self._endpoint, self._folder, self._ledger = endpoint, folder, ledger
        self._experiment, self._parts = experiment, parts
        self._brought: Arrays = {}
        """The values that come with the model, once they were read."""
        self._found: Checkpoint | None = None
        """The state that `find` or `load` found, until it is served."""
        self._served: Checkpoint | None = None
        self._damaged: set[str] = set()
        """Folders that were checked, and are no checkpoints of this run."""

    def find(self, at_most: int) -> Found:
        """The newest checkpoint of a round up to this one, as the ledger has it."""
        folder = self._folder.path
        saved, refused = checkpoints.newest(folder, at_most, self._check, self._signed)
        return Found(self._noted(saved) if saved is not None else None, refused)

    def load(self) -> Loaded:
        """Initial weights, if there are any, as the state before the first round."""
        path = self._experiment.initial_weights
        weights = {} if path is None else safetensors_io.read(path)
        return Loaded(self._noted(Checkpoint(0, weights, {})))

    def serve(self, parts: Sequence[int]) -> None:
        """Hand out a state to the workers of these indices.
        The state is the one that was found last, or else the one that is handed out
        already.
        """
        saved, self._found = self._found or self._served, None
        if saved is None:
            raise StateMismatch("no state was found that could be handed out")
        self._served = saved
        arrays = snapshot_of(reshard(saved, len(parts)), parts)
        self._endpoint.serve_snapshot(lambda: (saved.round, arrays | self._besides()))

    def _besides(self) -> Arrays:
        """The values that come with the model; kept once a worker can ask for them."""
        if not self._brought:
            self._brought = first_values.served(self._folder.path)
        return self._brought

    def decline(self) -> None:
        """Release the state that was found."""
        self._found = None

    def stop(self) -> None:
        """Stop handing out a state, and release it."""
        self._served = None
        self._endpoint.serve_snapshot(_nothing)

    def look(self, round_: int) -> OnDisk:
        """Whether this round is saved: whole, and as the ledger committed it.

        A checkpoint from before a rewind may have the same number.
        """
        damaged: list[str] = []
        for folder in checkpoints.folders(self._folder.path):
            if folder.name != f"round_{round_:08d}" or folder.name in self._damaged:
                continue
            try:
                self._signed(folder)
                self._check(checkpoints.load(folder))
            except StateMismatch as error:
                self._damaged.add(folder.name)
                damaged.append(str(error))
                continue
            return OnDisk(round_, str(folder), damaged)
        return OnDisk(round_, None, damaged)

    def _noted(self, saved: Checkpoint) -> SavedState:
        self._found = saved
        nonfinite = tuple(checkpoints.nonfinite(saved))
        digest = self._parts().digest(shared_of(saved)) if saved.workers else None
        return SavedState(saved.round, len(saved.workers), nonfinite, digest)

    def _signed(self, folder: Path) -> None:
        """`StateMismatch` for a checkpoint without a signature that counts."""
        try:
            self._trust.check(CHECKPOINT, *checkpoints.signatures(folder), str(folder))
        except BundleError as error:
            raise StateMismatch(str(error)) from error

    def _check(self, saved: Checkpoint) -> None:
        parts = cut_of(saved.info)
        if parts.digest(shared_of(saved)) not in self._ledger.digests(saved.round):
            raise StateMismatch(
                f"the checkpoint of round {saved.round} in {self._folder.path} is not "
                "the state the ledger committed"
            )


def _nothing() -> tuple[int, Arrays]:
    raise StateMismatch("the shepherd no longer hands out a state: the workers have it")
