"""Checkpoints of a fixed world: every member sends its state to the first of them.

They are those of a run with a shepherd (`pcp.training.storage.checkpoint`), and say
besides which run they are of and the losses of its steps so far.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import ConfigError, ProtocolError, RuntimeFault, StateMismatch
from pcp.runtime.group.file_lock import hold
from pcp.runtime.memory.dtypes import name_of, sent_dtype
from pcp.training.storage import checkpoint, safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.snapshots import assembled, shared_of, snapshot_of
from pcp.training.storage.state_names import OF_A_ROUND

_LOCK = "lock"
_LOSSES = "losses"
_TAG = 1 << 20
"""The tag of the messages between members; no program has so many channels."""


@dataclass(frozen=True)
class FixedState:
    """The whole state of a checkpoint, and by worker the losses before it."""

    snapshot: Arrays
    losses: list[np.ndarray]
    damaged: list[str]
    """Why newer ones, if there are any, are not used."""


class FixedCheckpoints:
    """The checkpoints in a folder, of a run with these `facts`.

    Rank r of the `world` is member r modulo the size of the mesh of one of the workers.
    All members must see the same folder to resume from it. The first of them has its
    run `alone` there.
    """

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], parts: IslandParts, world: Any
    ) -> None:
        self._folder, self._facts = folder, dict(facts)
        self._parts, self._world = parts, world

    def alone(self) -> FileIO:
        """A lock of the folder until it is closed; `ConfigError` if another run has it.

        Another run would remove what this one is writing.
        """
        folder = self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = FileIO(folder / _LOCK, "ab")
        except OSError as error:
            raise ConfigError(
                f"--checkpoint {folder}: cannot be written: {error.strerror}"
            ) from error
        hold(
            file,
            f"--checkpoint {folder}: another run keeps its checkpoints there; wait "
            "until it has ended, or name another folder",
        )
        return file

    def save(self, number: int, snapshot: Arrays, losses: np.ndarray) -> None:
        """Write the state of all members; each calls this behind the same round."""
        mine = {k: a for k, a in snapshot.items() if k.startswith(OF_A_ROUND)}
        mine[_LOSSES] = losses
        world = self._world
        if world.rank:
            content = np.frombuffer(safetensors_io.to_bytes(mine), np.uint8)
            world.send(np.array([content.size], np.int64), 0, _TAG)
            world.send(content, 0, _TAG)
            return
        held = [mine, *(self._received(rank) for rank in range(1, world.world_size))]
        try:
            checkpoint.save(self._folder, self._joined(number, held))
        except OSError as error:
            raise RuntimeFault(
                f"no checkpoint can be written: {error.filename}: {error.strerror}"
            ) from error

    def newest(self, steps: int) -> FixedState | None:
        """The newest whole checkpoint; None without one.

        `ConfigError` for one of another run, or behind more steps than `steps`.
        """
        found, refused = checkpoint.newest(self._folder)
        if refused and found is None:
            raise StateMismatch(refused[0])
        done = -1 if found is None else len(_losses(found)[0])
        self._all_found(done)
        if found is None:
            return None
        self._check(found)
        if done > steps:
            raise ConfigError(
                f"--resume: {self._folder} holds step {done}, beyond --steps {steps}"
            )
        return FixedState(snapshot_of(found), _losses(found), refused)

    def _received(self, rank: int) -> Arrays:
        size = self._world.recv(np.zeros(1, np.int64), rank, _TAG)
        content = self._world.recv(np.empty(int(size[0]), np.uint8), rank, _TAG)
        return safetensors_io.from_bytes(content.tobytes(), source=f"rank {rank}")

    def _joined(self, number: int, held: list[Arrays]) -> Checkpoint:
        """The checkpoint of all members' parts."""
        size = self._parts.size
        losses = [held[i][_LOSSES] for i in range(0, len(held), size)]
        for own in held:
            del own[_LOSSES]
        whole = [self._parts.join(ranks) for ranks in _workers(held, size)]
        found = assembled(number, [(number, arrays) for arrays in whole])
        found.info = {
            "digest": self._parts.digest(shared_of(found)),
            "seed": self._facts["seed"],
            "run": self._facts,
            _LOSSES: {
                "dtype": name_of(losses[0].dtype),
                "values": [[float(x) for x in own] for own in losses],
            },
            "nonfinite": checkpoint.nonfinite(found),
        }
        if self._parts.noted is not None:
            found.info["parts"] = self._parts.noted
        return found

    def _check(self, found: Checkpoint) -> None:
        made = found.info.get("run", {})
        for fact, value in self._facts.items():
            if made.get(fact) != value:
                raise ConfigError(
                    f"--resume: {self._folder} is of a run with another {fact} "
                    f"({made.get(fact)}, and now {value}); name a folder of its own "
                    "with --checkpoint"
                )

    def _all_found(self, done: int) -> None:
        """`ConfigError` where members found different checkpoints."""
        seen = self._world.all_gather(np.array([done], np.int64), tag="checkpoint")
        if len(set(map(int, np.ravel(seen)))) > 1:
            raise ConfigError(
                f"--resume: not all members see the same checkpoints in {self._folder};"
                " it has to be a folder of all their machines"
            )


def _workers(held: list[Arrays], size: int) -> Iterator[list[Arrays]]:
    """The parts of each worker's ranks."""
    return (held[i : i + size] for i in range(0, len(held), size))


def _losses(found: Checkpoint) -> list[np.ndarray]:
    """By worker, the losses of the steps before a checkpoint."""
    try:
        noted = found.info[_LOSSES]
        dtype = sent_dtype(noted["dtype"])
        return [np.array([*map(float, own)]).astype(dtype) for own in noted["values"]]
    except (KeyError, TypeError, ValueError, ProtocolError) as error:
        raise StateMismatch(
            f"the checkpoint of round {found.round} is not of `pcp run --steps`: it "
            "has no losses"
        ) from error
