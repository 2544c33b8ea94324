"""The exchanges inside an island: what its ranks send each other in an inner step.

A bundle lists the collectives of each device, and not which function makes them: those
of its evaluation count too, so it is the most that an inner step may take. They go
along rings (`docs/limits.md`), one after the other, each with a round trip to open it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pcp.manifest import Collective, Manifest
from pcp.mesh import WORKERS


@dataclass(frozen=True)
class InsideExchange:
    """The bytes of a rank to others of its island in an inner step, and their trips."""

    sent_bytes: float = 0.0
    """The bytes that each rank sends."""
    trips: float = 0.0
    """The round trips, one after the other."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The exchanges of the device that sends most; none in a whole worker."""
        if not manifest.programs:
            return cls()
        axes = manifest.worker_mesh().axes
        found = [
            cls._of_device(
                [c for c in device.collectives.values() if WORKERS not in c.axes], axes
            )
            for device in manifest.programs.values()
        ]
        return max(found, key=lambda each: (each.sent_bytes, each.trips))

    @classmethod
    def of_payload(cls, payload: int, ranks: int) -> Self:
        """One sum among all ranks, to which each contributes so many bytes."""
        return cls(_passes("all_reduce", ranks) * payload, _trips("all_reduce", ranks))

    @classmethod
    def _of_device(cls, made: Iterable[Collective], axes: dict[str, int]) -> Self:
        sent, trips = 0.0, 0.0
        for collective in made:
            ranks = math.prod(axes[axis] for axis in collective.axes)
            sent += _passes(collective.kind, ranks) * collective.bytes
            trips += _trips(collective.kind, ranks)
        return cls(sent, trips)

    def seconds(self, bandwidth: float, round_trip: float) -> float:
        """The seconds that they take; bytes a second of a rank."""
        return self.sent_bytes / bandwidth + self.trips * round_trip


def _passes(kind: str, ranks: int) -> float:
    """How often a rank's contribution passes its link."""
    share = (ranks - 1) / ranks
    along = {"all_reduce": 2 * share, "all_gather": ranks - 1.0}
    return along.get(kind, share if kind in _CUT else 1.0)


_CUT = ("reduce_scatter", "all_to_all")
"""The kinds of which a rank keeps its own part."""


def _trips(kind: str, ranks: int) -> float:
    """Round trips: half of one for a transfer along the ring, and one to open it."""
    along = {"all_reduce": 2 * (ranks - 1)}
    around = ranks - 1 if kind in (*_CUT, "all_gather") else 1
    return 1 + along.get(kind, around) / 2
