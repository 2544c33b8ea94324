"""The engine: ticks in, sampled tokens out (see `interface`).

It is the same for one device and for a mesh of them; what computes its calls differs.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pcp.bundle import Bundle
from pcp.runtime.program.executor import Program
from pcp.serving import weights
from pcp.serving.cached_model import CachedModel, Call, Shapes
from pcp.serving.drafting import Drafted, Drafter, Drafts
from pcp.serving.drawing import Rows
from pcp.serving.frames import Order
from pcp.serving.interface import Prepared, Sampled, Tick
from pcp.serving.planning import Slots, Wanted
from pcp.serving.sampling import NOT_FINITE, sample


class Executor(Protocol):
    """What carries out orders: the model on one device, or spread over ranks."""

    shapes: Shapes

    def carry_out(self, order: Order) -> list[Rows | None]:
        """The rows of each call, where they are wanted."""
        ...

    def recover(self) -> None:
        """Be ready again after `EngineLost`."""
        ...

    def prepare(self, folder: str) -> Prepared:
        """See `Engine.prepare`."""
        ...

    def swap(self, prepared: Any) -> None:
        """Serve what `prepare` gave, with empty caches."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...

    def describe(self) -> dict[str, Any]:
        """Mesh, ranks, epoch, bytes."""
        ...


class SlotEngine:
    """An engine of `slots` over an executor with as many caches.

    `drafter` says which tokens may follow those of steps (`drafting`): the answers are
    the same, and fewer calls give them.
    """

    def __init__(
        self,
        executor: Executor,
        slots: int,
        name: str,
        drafter: Drafter | None = None,
    ) -> None:
        shapes = executor.shapes
        self._executor = executor
        self._slots = Slots(shapes, slots)
        self._broken: set[int] = set()
        self.slots, self.context = slots, shapes.context
        self.vocabulary, self.model = shapes.vocabulary, name
        self.chunk = shapes.chunk
        self._drafts: Drafts | None = None
        if drafter is not None:
            self._drafts = Drafts(drafter, shapes.drafted, shapes.context)

    def tick(self, tick: Tick) -> list[Sampled]:
        """See `Engine.tick`."""
        self._slots.check(tick)
        drafted = self._drafted(tick)
        planned = self._slots.plan(tick, drafted)
        fresh = {chunk.slot for chunk in tick.chunks if not chunk.start}
        cleared = tuple(sorted(self._broken & fresh))
        order = Order(cleared, tuple(each.call for each in planned))
        made = self._executor.carry_out(order)
        self._broken -= set(cleared)
        found: dict[int, list[Sampled]] = {}
        for each, rows in zip(planned, made, strict=True):
            if rows is not None:
                for wanted in each.wanted:
                    self._take(wanted, rows, found.setdefault(wanted.slot, []))
        if self._drafts is not None:
            self._drafts.judge(drafted, found)
        pieces = (*tick.chunks, *tick.steps)
        return [sampled for p in pieces for sampled in found.get(p.slot, ())]

    def _drafted(self, tick: Tick) -> Drafted:
        if self._drafts is None:
            return {}
        held = {i: slot.tokens for i, slot in enumerate(self._slots.slots)}
        return self._drafts.of(tick.steps, held)

    def _take(self, wanted: Wanted, rows: Rows, found: list[Sampled]) -> None:
        """Sample a row's token, if all tokens before it were drafted right."""
        if not self._slots.holds(wanted):
            return
        row = wanted.drawn(self._slots.slots[wanted.slot])
        sampled = rows.sampled(row, wanted.slot)
        if sampled is None:
            given = (rows.logits()[row.row], row.sampling, row.history, wanted.slot)
            sampled = sample(*given, row.mask)
        found.append(sampled)
        self._slots.sampled(wanted, found[-1].token)
        if found[-1].token == NOT_FINITE:
            self._broken.add(wanted.slot)

    def recover(self) -> None:
        """See `Engine.recover`."""
        self._slots.empty()
        self._executor.recover()
        self._broken.clear()

    def prepare(self, folder: str) -> Prepared:
        """See `Engine.prepare`."""
        return self._executor.prepare(folder)

    def swap(self, prepared: Prepared) -> None:
        """See `Engine.swap`."""
        self._slots.empty()
        self._executor.swap(prepared)
        self._broken.clear()

    def close(self) -> None:
        """See `Engine.close`."""
        if self._drafts is not None:
            self._drafts.close()
        self._executor.close()

    def describe(self) -> dict[str, Any]:
        """See `Engine.describe`."""
        own = {"model": self.model, "slots": self.slots, "context": self.context}
        drafts = {"drafts": self._drafts.describe()} if self._drafts else {}
        return own | self._executor.describe() | drafts


@dataclass(frozen=True)
class Values:
    """Weights of a folder, in this process's memory."""

    folder: Path
    values: dict[str, np.ndarray]

    def close(self) -> None:
        """Nothing is held but memory."""


class OneDevice:
    """The executor of a program that one device of this process runs."""

    def __init__(
        self, bundle: Bundle, folder: str | Path, slots: int, device: str
    ) -> None:
        self.shapes = Shapes.of(bundle.manifest)
        function = bundle.manifest.function(self.shapes.prefill[0].name)
        self._wanted = weights.parameters(function.inputs)
        read = self._read(Path(folder))
        self.model = CachedModel(Program.load(bundle, device), read.values, slots)
        self._device, self._folder = device, read.folder

    def _read(self, folder: Path) -> "Values":
        files = weights.mapped(folder)
        return Values(folder, dict(weights.read(files, self._wanted, folder)))

    def carry_out(self, order: Order) -> list[Rows | None]:
        """See `Executor.carry_out`."""
        for slot in order.cleared:
            self.model.clear(slot)
        return [self._rows(call) for call in order.calls]

    def _rows(self, call: Call) -> Rows | None:
        logits = self.model.run(call)
        if logits is None or not call.wanted:
            return None
        return Rows(cache(logits.numpy), self.model.drawn(call, logits))

    def recover(self) -> None:
        """Empty the caches."""
        for slot in range(self.model.slots):
            self.model.clear(slot)

    def prepare(self, folder: str) -> "Values":
        """See `Engine.prepare`."""
        weights.check_same_model(self._folder, folder)
        return self._read(Path(folder))

    def swap(self, prepared: "Values") -> None:
        """See `Engine.swap`."""
        self.model.take(prepared.values)
        self._folder = prepared.folder
        self.recover()

    def close(self) -> None:
        """Release the device's memory."""
        self.model.close()

    def describe(self) -> dict[str, Any]:
        """See `Executor.describe`."""
        return {
            "mesh": {},
            "ranks": [{"rank": 0, "device": self._device, "alive": True}],
            "epoch": 0,
            "weights": str(self._folder),
            "weight_bytes": self.model.weight_bytes,
            "cache_bytes": self.model.cache_bytes,
        }


def load(
    bundle: Bundle | str | Path,
    folder: str | Path,
    *,
    slots: int = 4,
    device: str = "local-task",
    name: str = "",
    drafter: Drafter | None = None,
) -> SlotEngine:
    """The engine of a bundle on one device, with the weights of a model's folder."""
    if not isinstance(bundle, Bundle):
        bundle = Bundle.read(bundle)
    executor = OneDevice(bundle, folder, slots, device)
    return SlotEngine(executor, slots, name or Path(folder).resolve().name, drafter)
