"""The engine of one device: ticks in, sampled tokens out (see `interface`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pcp.bundle import Bundle
from pcp.runtime.program.executor import Program
from pcp.serving import weights
from pcp.serving.cached_model import CachedModel, Shapes
from pcp.serving.interface import Sampled, Tick
from pcp.serving.planning import Planned, Slots
from pcp.serving.sampling import NOT_FINITE, sample


class LocalEngine:
    """A bundle of prefill and decode functions on a device of this process."""

    def __init__(
        self,
        bundle: Bundle,
        values: Mapping[str, np.ndarray],
        *,
        slots: int = 4,
        device: str = "local-task",
        name: str = "model",
    ) -> None:
        shapes = Shapes.of(bundle.manifest)
        self._model = CachedModel(Program.load(bundle, device), values, slots)
        self._slots = Slots(shapes, slots)
        self._device, self._broken = device, set[int]()
        self.slots, self.context = slots, shapes.context
        self.vocabulary, self.model = shapes.vocabulary, name
        self.chunk = max(f.rows for f in shapes.prefill)

    @classmethod
    def load(
        cls, bundle: Bundle | str | Path, folder: str | Path, **options: Any
    ) -> "LocalEngine":
        """An engine with the weights of a folder; `options` are the constructor's."""
        if not isinstance(bundle, Bundle):
            bundle = Bundle.read(bundle)
        functions = bundle.manifest.functions
        wanted = weights.parameters(next(iter(functions.values())).inputs)
        values = dict(weights.read(weights.mapped(folder), wanted, folder))
        options.setdefault("name", Path(folder).resolve().name)
        return cls(bundle, values, **options)

    def tick(self, tick: Tick) -> list[Sampled]:
        """See `Engine.tick`."""
        planned = self._slots.plan(tick)
        for chunk in tick.chunks:
            if not chunk.start and chunk.slot in self._broken:
                self._model.clear(chunk.slot)
                self._broken.discard(chunk.slot)
        return [s for each in planned for s in self._computed(each)]

    def _computed(self, planned: Planned) -> list[Sampled]:
        logits = self._model.run(planned.call)
        found = []
        for wanted in planned.wanted:
            history = self._slots.slots[wanted.slot].history()
            given = (logits[wanted.row], wanted.sampling, history, wanted.slot)
            found.append(sample(*given, wanted.mask))
        self._broken |= {s.slot for s in found if s.token == NOT_FINITE}
        return found

    def recover(self) -> None:
        """Empty all slots."""
        self._slots.empty()

    def close(self) -> None:
        """Release the device's memory."""
        self._model.close()

    def describe(self) -> dict[str, Any]:
        """See `Engine.describe`."""
        return {
            "model": self.model,
            "mesh": {},
            "ranks": [{"rank": 0, "device": self._device, "alive": True}],
            "epoch": 0,
            "slots": self.slots,
            "context": self.context,
            "weight_bytes": self._model.weight_bytes,
            "cache_bytes": self._model.cache_bytes,
        }
