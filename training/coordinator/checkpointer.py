"""Checkpoints of a running group: fetched from the members, written aside.

While the state is fetched no new round begins, so that all members still hold
the same one; that takes as long as moving it once, from all of them together.
Writing to disk happens beside the next round.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pcp.errors import RuntimeFault, StateMismatch
from pcp.runtime import fetch_snapshot
from pcp.runtime.transport.credentials import Protection
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.state_names import (
    INNER,
    OUTER,
    OWN,
    PARAMETER,
    PRIVATE,
    REPLICA,
    shared_part,
    under,
)
from pcp.training.trainer import nonfinite
from pcp.training.trainer.replica_trainer import mean_of

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd

_FETCH_SECONDS = 120.0
_ADOPT_SECONDS = 10.0
_RETRY_SECONDS = 5.0
_AT_ONCE = 16


def gather(
    addresses: Sequence[str],
    round_: int,
    digest: str | None,
    protection: Protection,
    silence: float,
) -> Checkpoint:
    """The state of a round, and what is its own of the member at each address.

    Its `info` says under "nonfinite" which tensors are not finite.

    `StateMismatch` if a member holds another round, or another state; a fault of the
    connection if one says nothing for `silence` seconds.
    """

    def fetch(address: str) -> tuple[int, safetensors_io.Arrays]:
        revision, arrays = _fetch(address, round_, protection, silence)
        if revision != round_ or safetensors_io.digest(shared_part(arrays)) != digest:
            raise StateMismatch(
                f"{address} holds round {revision}, or another state of round {round_}"
            )
        return revision, arrays

    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(addresses)))) as pool:
        found = assembled(round_, list(pool.map(fetch, addresses)))
    found.info["nonfinite"] = checkpoints.nonfinite(found)
    return found


def assembled(
    round_: int, held: Sequence[tuple[int, safetensors_io.Arrays]]
) -> Checkpoint:
    """A checkpoint from its members' snapshots, in the order of their ranks."""
    found = Checkpoint(round_, {}, {})
    for _, arrays in held:
        shared = shared_part(arrays)
        found.parameters, found.outer = under(PARAMETER, shared), under(OUTER, shared)
        found.workers.append(under(f"{INNER}0/", arrays))
        found.private.append(under(f"{PRIVATE}{OWN}/", arrays))
    if replicas := [under(REPLICA, own) for own in found.private]:
        found.parameters = found.parameters or mean_of(replicas)
    return found


def _fetch(
    address: str, round_: int, protection: Protection, silence: float
) -> tuple[int, safetensors_io.Arrays]:
    """A member's snapshot, once it has adopted the round it was told to."""
    deadline = time.monotonic() + _ADOPT_SECONDS
    while True:
        revision, arrays = fetch_snapshot(
            address, _FETCH_SECONDS, silence=silence, **protection.options
        )
        if revision >= round_ or time.monotonic() > deadline:
            return revision, arrays
        time.sleep(0.02)


class Saver:
    """Makes the checkpoints of a run."""

    def __init__(self, shepherd: "Shepherd") -> None:
        self._shepherd = shepherd
        self.blocking = False
        """A state is being fetched: no round may begin."""
        self.busy = False
        """A checkpoint is being fetched or written."""
        self._rests_until = 0.0
        self.saved: int | None = None
        """The last round that is on disk."""
        self.path: str | None = None
        """Where."""
        self._damaged: set[str] = set()
        """Checkpoints that were looked at, and are none."""

    @property
    def resting(self) -> bool:
        """Whether a checkpoint failed just now: the disk is given a moment."""
        return self._shepherd.now() < self._rests_until

    def on_disk(self, round_: int) -> bool:
        """Whether an earlier process saved this round, and it is whole."""
        for folder in checkpoints.folders(self._shepherd.folder.path):
            if folder.name != f"round_{round_:08d}" or folder.name in self._damaged:
                continue
            try:
                checkpoints.load(folder)
            except StateMismatch as error:
                self._damaged.add(folder.name)
                self._shepherd.log(f"{error}; it is made again")
                continue
            self.saved, self.path = round_, str(folder)
            return True
        return False

    def save(self, names: Sequence[str]) -> None:
        """Begin a checkpoint of the committed round from these members."""
        shepherd = self._shepherd
        if self.busy:
            shepherd.log("the disk is slower than the rounds: a checkpoint is left out")
            return
        self.busy = self.blocking = True
        progress = shepherd.ledger.progress
        addresses = [shepherd.roster[name].address for name in names]
        round_, digest, names = progress.committed, progress.digest, list(names)
        info = {
            "run": shepherd.folder.name,
            "digest": digest,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "seed": shepherd.experiment.seed,
            "frozen": shepherd.experiment.frozen(),
            "data": {
                "digest": progress.begin["data"],
                "samples_per_epoch": progress.begin["samples_per_epoch"],
                "taken": progress.spent,
            },
            "tokenizer": shepherd.tokenizer,
            "ledger_offset": shepherd.ledger.offset,
        }

        def then(result: Checkpoint | Exception) -> None:
            self.blocking = False
            if isinstance(result, Checkpoint):
                result.info |= info
                self._tell_nonfinite(result)
                self._write(result, names)
            else:
                self._failed(result)

        safe = shepherd.protection
        # No round begins meanwhile: who is silent is as good as dead here too.
        silence = shepherd.experiment.heartbeat_limit_seconds
        shepherd.hub.work(
            lambda: gather(addresses, round_, digest, safe, silence), then
        )

    def _tell_nonfinite(self, checkpoint: Checkpoint) -> None:
        if names := checkpoint.info["nonfinite"]:
            self._shepherd.log(
                f"the state of round {checkpoint.round} is not finite, and is saved as "
                f"it is: {nonfinite.listed(names)}"
            )

    def _write(self, checkpoint: Checkpoint, names: list[str]) -> None:
        folder, keep = self._shepherd.folder, self._shepherd.experiment.keep_checkpoints
        self._shepherd.hub.work(
            lambda: checkpoints.save(folder.path, checkpoint, keep),
            lambda result: self._written(checkpoint.round, names, result),
        )

    def _written(self, round_: int, names: list[str], result: Any) -> None:
        if isinstance(result, Exception):
            self._failed(result)
            return
        self.busy, self.saved, self.path = False, round_, str(result)
        self._shepherd.ledger.append(
            "checkpoint", round=round_, path=result.name, members=names
        )
        self._shepherd.log(f"checkpoint of round {round_} in {result}")

    def _failed(self, error: Exception) -> None:
        self.busy = False
        if not isinstance(error, RuntimeFault | OSError):
            raise error
        # A member died, or the disk is full: the next checkpoint may work.
        self._rests_until = self._shepherd.now() + _RETRY_SECONDS
        self._shepherd.log(f"no checkpoint this time: {error}")
