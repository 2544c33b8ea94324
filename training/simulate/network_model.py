"""The model of a simulated run's world: compute, network, failures.

The time of an exchange is that of the schedule that a run takes for a sum of its size,
its number of members and the distance that the shepherd names in its orders. Along the
ring 2 (M-1)/M of the array pass each link, in M-1 round trips; by halving and doubling
as many bytes pass in log2 M round trips; along the tree the whole array passes each of
log2 M edges twice. A gather moves M-1 contributions. Each collective takes further time
for its OPEN frames and votes: a round trip among few members, log2 M among many.

Of islands, the ranks at each coordinate exchange among themselves, all coordinates at
once, with a rank's part of the payload.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pcp.errors import ConfigError
from pcp.manifest import Collective, Function, Manifest, tensor_bytes
from pcp.mesh import WORKERS
from pcp.runtime.collectives.reduction import declared
from pcp.runtime.compression.codecs import codec
from pcp.training.trainer.bundle_checks import plan_of
from pcp.wire import FEW_MEMBERS, Distance

#: Kind of a collective, or of its reduction -> the field of `World` with its bytes.
_FIELDS = {
    "all_reduce": "payload_bytes",
    "all_gather": "gathered_bytes",
    "trimmed_mean": "gathered_bytes",
}


@dataclass(frozen=True)
class World:
    """The parameters of the model. Seconds, bytes, bytes a second."""

    workers: int
    step_seconds: float
    payload_bytes: int
    """Bytes of a worker's contribution to the sums of an exchange, as it is sent."""
    state_bytes: int
    """Bytes of the state that a newcomer fetches."""
    bandwidth: float
    """The bandwidth of each worker, in each direction."""
    round_trip: float
    gathered_bytes: int = 0
    """Bytes of a worker that an exchange gathers on every other member."""
    pairs: bool = False
    """Whether members exchange in pairs, in place of all together."""
    spread: float = 0.05
    """The relative standard deviation of the workers' speeds."""
    jitter: float = 0.02
    """The relative standard deviation of one worker's rounds."""
    overhead: float = 0.0
    """The fixed seconds of an exchange of any size."""
    coded: bool = False
    """Whether sums are compressed: those go along the ring at any size."""
    meetings: int = 0
    """The collectives of an exchange, each with a round trip for OPEN and votes."""
    every_step: bool = False
    """Whether members exchange in every inner step, not once a round."""
    in_background: bool = False
    """Whether an exchange is a background exchange."""
    lifetime: float = math.inf
    """Mean seconds until a worker dies."""
    restart: float = 2.0
    """Seconds from a death to the next `Hello`."""
    silent: float = 0.0
    """The share of deaths that close no connection."""
    ranks: int = 1
    """The devices of a worker: more than one where it is an island.

    Bytes, the bandwidth and deaths are those of a device.
    """
    inside_seconds: float = 0.0
    """Seconds of an inner step for which the ranks of an island exchange."""

    @classmethod
    def of(cls, manifest: Manifest, **changes: Any) -> Self:
        """The world of a bundle's run; `changes` are fields that the bundle lacks.

        `payload_bytes` among them is in place of all bytes that workers send. Without
        it, `ConfigError` for a bundle of which those are not known.
        """
        plan = plan_of(manifest)
        every_step = plan.synchronize == "step"
        collectives = _with_others(manifest)
        known = {
            "state_bytes": state_bytes(manifest),
            # With the comparison of states at the end of a round.
            "meetings": len(collectives) + (not every_step),
            "ranks": max(1, len(manifest.programs)),
            "every_step": every_step,
            "in_background": plan.in_background,
            "pairs": plan.in_pairs,
        }
        if "payload_bytes" not in changes:
            known |= _exchanged(collectives)
            found = collectives.values()
            known["coded"] = any("codec" in c.attributes for c in found)
        return cls(**known | changes)

    @property
    def distance(self) -> Distance:
        """The workers' distance as they would measure it."""
        return Distance(self.round_trip, self.bandwidth)

    def exchange_seconds(self, members: int, distance: Distance | None = None) -> float:
        """The seconds of an exchange among `members`, with its fixed part.

        `distance` is the one in the shepherd's order; by default the world's own.
        """
        if members < 2:
            return self.overhead
        schedule = self._schedule(members, distance or self.distance)
        share = self._exchanged_bytes(members) / self.bandwidth
        if schedule == "tree":  # the whole array, on one edge after the other
            share *= self._doublings(members)
        trips = self._trips(members, schedule) + self.meetings * self._votes(members)
        return share + trips * self.round_trip + self.overhead

    def waited_seconds(
        self,
        members: int,
        steps: int,
        computed: float,
        distance: Distance | None = None,
    ) -> float:
        """The seconds of waiting for exchanges in a round of `steps` inner steps."""
        exchange = self.exchange_seconds(members, distance)
        seconds = exchange * self._exchanges(steps)
        return max(0.0, seconds - computed) if self.in_background else seconds

    def sent_bytes(self, members: int, steps: int = 1) -> int:
        """The bytes that each worker sends in a round of `steps` inner steps."""
        return round(self._exchanged_bytes(members)) * self._exchanges(steps)

    def _schedule(self, members: int, distance: Distance) -> str:
        """The schedule of a sum; "ring" for all that is no plain sum."""
        if self.coded:
            return "ring"
        return declared(self.payload_bytes, self._ring(members), distance)

    def _exchanged_bytes(self, members: int) -> float:
        """The bytes that each member of an exchange sends."""
        ring = self._ring(members)
        reduced = 2 * (ring - 1) / ring * self.payload_bytes
        return reduced + (ring - 1) * self.gathered_bytes

    def _trips(self, members: int, schedule: str) -> float:
        """Round trips of an exchange; a transfer takes half of one."""
        ring = self._ring(members)
        if schedule not in ("halving_doubling", "tree"):
            return ring - 1
        trips = self._doublings(members)
        return max(trips, ring - 1) if self.gathered_bytes else trips

    def _votes(self, members: int) -> int:
        """Round trips of a vote: up a tree and down again beyond few members."""
        return 1 if members <= FEW_MEMBERS else self._doublings(members)

    def _doublings(self, members: int) -> int:
        return (self._ring(members) - 1).bit_length()

    def _ring(self, members: int) -> int:
        return min(members, 2) if self.pairs else members

    def _exchanges(self, steps: int) -> int:
        return steps if self.every_step else 1

    def stall_seconds(self, steps: int) -> float:
        """Seconds without a commit of so many inner steps: the run has stopped."""
        exchanged = self.waited_seconds(self.workers, steps, 0.0)
        once = steps * self.step_seconds + self.restart
        return 100 * (once + exchanged + self.joining_seconds())

    def joining_seconds(self) -> float:
        """The seconds of fetching a state."""
        return self.state_bytes / self.bandwidth + 2 * self.round_trip


def parameter_bytes(manifest: Manifest) -> int:
    """The bytes of all parameters."""
    return sum(tensor_bytes(p.shape, p.dtype) for p in manifest.parameters)


_HELD = ("state", "model_state", "outer", "private", "frozen")


def state_bytes(manifest: Manifest) -> int:
    """Bytes that a newcomer fetches: parameters, all kinds of state, frozen tensors.

    In an island those of the rank with the most.
    """
    if not manifest.programs:
        return parameter_bytes(manifest) + _held_bytes(manifest.functions, _HELD)
    devices, held = manifest.programs.values(), ("param", *_HELD)
    return max(_held_bytes(device.functions, held) for device in devices)


def _held_bytes(functions: Mapping[str, Function], roles: tuple[str, ...]) -> int:
    held = {
        (spec.name, spec.role): spec.nbytes
        for function in functions.values()
        for spec in function.inputs
        if spec.role in roles
    }
    return sum(held.values())


def _with_others(manifest: Manifest) -> Mapping[str, Collective]:
    """The collectives with other workers, or of the rank that sends them most."""
    if not manifest.programs:
        return manifest.collectives
    found = [
        {name: c for name, c in device.collectives.items() if WORKERS in c.axes}
        for device in manifest.programs.values()
    ]
    return max(found, key=lambda made: sum(c.bytes for c in made.values()))


def _exchanged(collectives: Mapping[str, Collective]) -> dict[str, int]:
    """The bytes of a worker's contributions to an exchange, by `World`'s fields."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    other = sorted({c.kind for c in collectives.values()} - _FIELDS.keys())
    if not collectives or other:
        what = f"by {', '.join(other)}, not modelled" if other else "by no collective"
        raise ConfigError(
            f"the bundle exchanges {what}: say what a worker contributes to an "
            "exchange, with pcp simulate --payload BYTES, or payload_bytes"
        )
    for collective in collectives.values():
        kind = collective.kind
        if collective.reduction in _FIELDS:
            kind = collective.reduction
        found[_FIELDS[kind]] += _wire_bytes(collective)
    return found


def _wire_bytes(collective: Collective) -> int:
    """The bytes of one worker's contribution, compressed as it is sent."""
    name = collective.attributes.get("codec")
    if name is None:
        return collective.bytes
    return codec(str(name)).wire_bytes(math.prod(collective.shape))
