"""The executor of a program that is spread over ranks, each a process of its own.

Rank 0 is here: it tells the others what to do, computes its own part and has the
logits. A rank that is lost fails the order on all of them; in `recover` a spare takes
its place, or it is started again, and all meet in a new world, whose number is the
epoch. Ranks that live keep their program and their weights.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pcp.bundle import Bundle
from pcp.errors import ConfigError, PeerLost, RuntimeFault, StateMismatch
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.serving import weights
from pcp.serving.drafting import Drafter
from pcp.serving.drawing import Rows
from pcp.serving.engine import SlotEngine
from pcp.serving.frames import Order
from pcp.serving.interface import EngineLost
from pcp.serving.member import PATIENCE, Log, Member, Read
from pcp.serving.spares import Process, Spare, Spares

_STOP_SECONDS = 5.0
_ATTEMPTS = 3
"""To meet: a rank may die while they do; behind the second one all begin anew."""
_LOOK_SECONDS = 0.1


Spawn = Callable[[Path, int, str], Process]
"""Starts the process of a rank, with the weights of a folder, which is to meet the
others at an address."""
StandBy = Callable[[Path, int], Spare]
"""Starts a process that has the part of a rank, and waits to be one."""


@dataclass(frozen=True)
class NextWorld:
    """Ranks in reserve that have other weights, and rank 0's part of them."""

    folder: Path
    read: Read
    ranks: Spares

    def close(self) -> None:
        """End those ranks."""
        self.ranks.close()


class Spread:
    """Rank 0 and what it knows of the others.

    `spawn` starts them; without it they come by themselves, to `address`. `stand_by`
    starts one of `spares` in reserve. `closed` is called when none will be started any
    more.
    """

    def __init__(
        self,
        bundle: Bundle,
        folder: str | Path,
        *,
        slots: int,
        device: str = "local-task",
        spawn: Spawn | None = None,
        stand_by: StandBy | None = None,
        spares: int = 0,
        address: str = "127.0.0.1:0",
        patience: float = PATIENCE,
        log: Log = lambda _: None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._spawn, self._patience, self._log = spawn, patience, log
        self._closed = closed
        self._address, self._device = address, device
        self.epoch, self._lost = 0, set[int]()
        self._processes: dict[int, Process] = {}
        try:
            self.member = Member(bundle, folder, 0, slots=slots, device=device)
        except BaseException:
            closed()
            raise
        self.shapes = self.member.shapes
        self._folder, self._stand_by = Path(folder), stand_by
        self._spare_count = spares if stand_by else 0
        self._spares = self._reserve(self._folder, self._spare_count)
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    def _reserve(self, folder: Path, count: int) -> Spares:
        start = _none if self._stand_by is None else partial(self._stand_by, folder)
        return Spares(count, self.member.mesh.size, start, self._log)

    # --- worlds ---

    def _meet(self) -> None:
        """Start the ranks that do not run, and meet all of them."""
        host = Rendezvous.listen(self._address)
        self._address = host.address
        size = self.member.mesh.size
        for rank in range(1, size):
            self._revive(rank)
        self._lost = set()
        met = threading.Event()
        watch = threading.Thread(target=self._watch, args=(host, met), daemon=True)
        watch.start()
        try:
            world = Communicator.connect(
                host, rank=0, world_size=size, timeout=self._patience
            )
        finally:
            met.set()
            watch.join()
        self.member.join(world)
        self.epoch += 1
        self._log(f"epoch {self.epoch}: {size} ranks serve, at {self._address}")
        self._spares.tend(now=True)

    def _watch(self, host: Rendezvous, met: threading.Event) -> None:
        """The formation of the mesh ends when a rank has ended."""
        while not met.wait(_LOOK_SECONDS):
            if any(p.poll() is not None for p in list(self._processes.values())):
                host.give_up(0)
                return

    def _revive(self, rank: int) -> None:
        if self._spawn is None:
            return
        running = self._processes.get(rank)
        if running is not None and rank not in self._lost and running.poll() is None:
            return
        self._end(rank)
        spare = self._spares.take(rank, self._address)
        self._processes[rank] = spare or self._spawn(self._folder, rank, self._address)

    def _end(self, rank: int) -> None:
        if (running := self._processes.pop(rank, None)) is not None:
            running.kill()
            running.wait()

    def carry_out(self, order: Order) -> list[Rows | None]:
        """See `Executor.carry_out`; `EngineLost` when a rank was lost."""
        if self.member.world is None:
            raise EngineLost("a rank was lost; recover() first")
        self._spares.tend()
        try:
            self.member.tell(order)
            return self.member.carry_out(order)
        except RuntimeFault as fault:
            cause = self.member.cause(fault)
            if isinstance(cause, PeerLost) and cause.peer:
                self._lost.add(cause.peer)
            self.member.leave()
            raise EngineLost(f"{cause}; all slots are lost") from fault

    def recover(self) -> None:
        """Form the next world; `EngineLost` if that fails three times."""
        self.member.leave()
        for attempt in range(_ATTEMPTS):
            try:
                self._meet()
                return
            except StateMismatch:
                raise
            except RuntimeFault as fault:
                self.member.leave()
                self._log(f"the ranks did not meet: {fault}")
                if attempt + 1 == _ATTEMPTS:
                    raise EngineLost(f"the ranks do not meet: {fault}") from fault
                if attempt + 2 == _ATTEMPTS:
                    self._lost.update(self._processes)  # all begin anew

    def prepare(self, folder: str) -> NextWorld:
        """See `Engine.prepare`: a second set of ranks loads them beside the first."""
        if self._stand_by is None:
            raise ConfigError(
                "the ranks came by themselves: start them anew with the other weights"
            )
        weights.check_same_model(self._folder, folder)
        read = self.member.read(folder)
        ranks = self._reserve(Path(folder), self.member.mesh.size - 1)
        try:
            ranks.tend(now=True)
            ranks.until_loaded(self._patience)
        except BaseException:
            ranks.close()
            raise
        return NextWorld(Path(folder), read, ranks)

    def swap(self, prepared: NextWorld) -> None:
        """See `Engine.swap`: all ranks are lost, and the others take their places."""
        self.member.leave()
        for rank in list(self._processes):
            self._end(rank)
        self._spares.close()
        self.member.take(prepared.read)
        self._folder, self._spares = prepared.folder, prepared.ranks
        self._spares.count = self._spare_count
        self.recover()

    def close(self) -> None:
        """Stop the ranks and release everything."""
        self._spares.close()
        try:
            if self.member.world is not None:
                self.member.tell(Order(stop=True))
                self._wait(_STOP_SECONDS)
        except RuntimeFault as fault:
            self._log(f"while stopping: {fault}")
        for rank in list(self._processes):
            self._end(rank)
        self.member.close()
        self._closed()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if all(p.poll() is not None for p in self._processes.values()):
                return
            time.sleep(0.01)

    def describe(self) -> dict[str, Any]:
        """See `Executor.describe`."""
        joined, size = self.member.world is not None, self.member.mesh.size
        ranks = [{"rank": 0, "device": self._device, "alive": True}]
        for rank in range(1, size):
            process = self._processes.get(rank)
            runs = joined if process is None else process.poll() is None
            ranks.append({"rank": rank, "alive": runs})
            if process is not None:
                ranks[-1]["pid"] = process.pid
        return {
            "mesh": dict(self.member.mesh.axes),
            "address": self._address,
            "ranks": ranks,
            "spares": self._spares.pids,
            "epoch": self.epoch,
            "weights": str(self._folder),
            "weight_bytes": self.member.model.weight_bytes,
            "cache_bytes": self.member.model.cache_bytes,
        }


def _none(rank: int) -> Spare:
    raise AssertionError(f"nothing starts a spare of rank {rank}")


def load(
    bundle: Bundle | str | Path,
    folder: str | Path,
    *,
    slots: int = 4,
    name: str = "",
    drafter: Drafter | None = None,
    **options: Any,
) -> SlotEngine:
    """The engine of a bundle that is spread over ranks; `options` are `Spread`'s."""
    if not isinstance(bundle, Bundle):
        bundle = Bundle.read(bundle)
    executor = Spread(bundle, folder, slots=slots, **options)
    return SlotEngine(executor, slots, name or Path(folder).resolve().name, drafter)
