"""One member of a mesh that serves: its part of the program, weights and caches.

Rank 0 is in the engine's process (`spread`); the others run `follow`: they wait for an
order, carry it out, and begin again. When a member is lost all others leave the world
and meet where rank 0 listens, in the next one; they keep their program and weights.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from pcp.bundle import Bundle
from pcp.errors import RuntimeFault, StateMismatch
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program
from pcp.runtime.program.mesh_groups import MeshGroups
from pcp.serving import shards, weights
from pcp.serving.cached_model import CachedModel, Call, Shapes
from pcp.serving.drawing import Rows
from pcp.serving.frames import FIRST, Order, decode, encode

PATIENCE = 60.0
"""Seconds in which the members of a world meet."""
IDLE = 365 * 86400.0
"""Seconds that a member waits for an order; a lost rank 0 is noticed without."""
_PAUSE = 0.2

Log = Callable[[str], None]


@dataclass(frozen=True)
class Read:
    """A rank's part of the weights, and what all ranks compare."""

    values: dict[str, np.ndarray]
    fingerprint: np.ndarray


class Member:
    """The part of rank `rank`; `join` makes it a member of a world."""

    def __init__(
        self,
        bundle: Bundle,
        folder: str | Path,
        rank: int,
        *,
        slots: int,
        device: str = "local-task",
    ) -> None:
        manifest = bundle.manifest
        self.shapes = Shapes.of(manifest)
        self.mesh = manifest.partition_mesh()
        self.rank, self.bundle, self._count = rank, bundle, slots
        named = self.mesh.devices[rank]
        first = self.shapes.prefill[0].name
        whole = manifest.function(first)
        own = {t.name for t in manifest.of_device(named).function(first).inputs}
        wanted = weights.parameters(whole.inputs)
        self._wanted = [spec for spec in wanted if spec.name in own]
        read = self.read(folder)
        program = Program.load(bundle, device, member=named)
        self.model = CachedModel(program, read.values, slots)
        self._fingerprint = read.fingerprint
        self._cut = ",".join(whole.results[0].layout.axes)
        self._part = self.mesh.members[rank].get(self._cut, 0)
        self.world: Communicator | None = None
        self._groups: MeshGroups | None = None

    def read(self, folder: str | Path) -> "Read":
        """This rank's part of the weights of a folder."""
        part = shards.Part(self.mesh, self.rank)
        files = shards.files(folder, part)
        values = dict(shards.read(files, self._wanted, folder, part))
        said = f"{self.bundle.digest}\0{self._count}\0".encode() + files.fingerprint
        return Read(values, np.frombuffer(weights.digest(said), np.uint8))

    def take(self, read: "Read") -> None:
        """Serve these weights in the next world."""
        self.model.take(read.values)
        self._fingerprint = read.fingerprint

    def join(self, world: Communicator) -> None:
        """Be a member of a world, with empty slots.

        `StateMismatch` where another member serves something else.
        """
        self.world = world
        theirs = world.all_gather(self._fingerprint[None])
        if other := [r for r, f in enumerate(theirs) if (f != theirs[0]).any()]:
            raise StateMismatch(
                f"rank {other[0]} has another bundle, other weights or another number "
                "of slots than rank 0: give all ranks the same"
            )
        self._groups = MeshGroups.of(world, self.bundle.manifest)
        self.model.program.communicator = self._groups
        for slot in range(self.model.slots):
            self.model.clear(slot)

    def leave(self) -> None:
        """Leave the world, at once."""
        self.model.program.communicator = None
        if self._groups is not None:
            self._groups.close(timeout=0)
        if self.world is not None:
            self.world.close(timeout=0)
        self.world = self._groups = None

    def cause(self, fault: RuntimeFault) -> RuntimeFault:
        """What made the world fail, where it says so."""
        return fault if self._groups is None else self._groups.cause(fault)

    def tell(self, order: Order) -> None:
        """Send an order to all others (rank 0)."""
        assert self.world is not None, "a member of a world"
        if not self._cut:  # rank 0 draws alone
            calls = tuple(replace(call, draw=None) for call in order.calls)
            order = replace(order, calls=calls)
        numbers = encode(order)
        self.world.broadcast(np.array(numbers[:FIRST]))
        if len(numbers) > FIRST:
            self.world.broadcast(np.array(numbers[FIRST:]))

    def hear(self) -> Order:
        """Wait for the next order of rank 0."""
        assert self.world is not None, "a member of a world"
        first = np.zeros(FIRST, np.int32)
        self.world.broadcast(first, timeout=IDLE)
        if first[0] > FIRST:
            rest = np.zeros(int(first[0]) - FIRST, np.int32)
            first = np.concatenate([first, self.world.broadcast(rest)])
        return decode(first)

    def carry_out(self, order: Order) -> list[Rows | None]:
        """What each call gives, where it is wanted; at rank 0 alone."""
        for slot in order.cleared:
            self.model.clear(slot)
        return [self._rows(call) for call in order.calls]

    def _rows(self, call: Call) -> Rows | None:
        """Logits go from rank to rank only where the program draws nothing of them."""
        logits = self.model.run(call)
        if logits is None or not call.wanted:
            return None
        if not self._cut:
            drawn = None if self.rank else self.model.drawn(call, logits)
            return Rows(cache(logits.numpy), drawn)
        drawn = self.model.drawn(call, logits, self._part)
        whole = self._whole(logits.numpy() if drawn is None else drawn)
        if whole is None:
            return None
        return Rows(lambda: whole) if drawn is None else Rows(_not_gathered, whole)

    def _whole(self, part: np.ndarray) -> np.ndarray | None:
        """What all members have of each row, [rows, parts, ...], at rank 0.

        The members that have it are its stage: those along the axis that cuts it.
        """
        assert self._groups is not None, "a member of a world"
        stage = self._groups[self._cut]
        joined = stage.gather(np.ascontiguousarray(part.swapaxes(0, 1)), root=0)
        return None if joined is None else joined.swapaxes(0, 1)

    def close(self) -> None:
        """Leave, and release the device's memory."""
        self.leave()
        self.model.close()


def _not_gathered() -> np.ndarray:
    raise AssertionError("of several parts a program draws all rows, or none")


def follow(
    member: Member, address: str, log: Log, *, patience: float = PATIENCE
) -> None:
    """Serve as a rank beside rank 0, which listens at `address`, until that says stop.

    A world that fails is left, and the next one joined. Raises what the last attempt
    raised, if for `patience` seconds there is none.
    """
    until = time.monotonic() + patience
    while True:
        try:
            world = Communicator.connect(
                address,
                rank=member.rank,
                world_size=member.mesh.size,
                timeout=max(1.0, until - time.monotonic()),
            )
            member.join(world)
            log(f"rank {member.rank} of {member.mesh.size} serves")
            while not (order := member.hear()).stop:
                member.carry_out(order)
            return
        except StateMismatch:
            raise
        except RuntimeFault as fault:
            if member.world is not None:
                until = time.monotonic() + patience
            elif time.monotonic() > until:
                raise
            log(f"rank {member.rank}: {member.cause(fault)}; joining again")
            member.leave()
            time.sleep(_PAUSE)
