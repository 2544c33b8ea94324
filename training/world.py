"""What a simulated run takes place in: compute, network, failures.

Times of an exchange are those of a ring: 2 (M-1)/M of the payload over the bandwidth,
and M-1 round trips; each collective besides is opened and voted for by all.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """What is modelled. Seconds, bytes, bytes a second."""

    workers: int
    step_seconds: float
    payload_bytes: int
    """What a worker contributes to a round."""
    state_bytes: int
    """What a newcomer fetches."""
    bandwidth: float
    """Of each worker, each way."""
    round_trip: float
    spread: float = 0.05
    """Of the workers' speeds: a relative standard deviation."""
    jitter: float = 0.02
    """Of one worker's rounds."""
    overhead: float = 0.0
    """Of an exchange, whatever its size."""
    meetings: int = 0
    """Collectives of an exchange: each is opened and voted for, a round trip."""
    every_step: bool = False
    """Whether members exchange in every inner step, not once a round."""
    beside: bool = False
    """Whether an exchange takes place beside the inner steps."""
    lifetime: float = math.inf
    """Mean seconds until a worker dies."""
    restart: float = 2.0
    """From a death to the next hello."""
    silent: float = 0.0
    """Share of deaths that close no connection."""

    def exchange_seconds(self, members: int) -> float:
        """Of one ring all-reduce among `members`, and what goes with it."""
        if members < 2:
            return self.overhead
        share = 2 * (members - 1) / members * self.payload_bytes / self.bandwidth
        trips = members - 1 + self.meetings
        return share + trips * self.round_trip + self.overhead

    def waited_seconds(self, members: int, steps: int, computed: float) -> float:
        """For exchanges in a round of `steps` inner steps, `computed` seconds long."""
        seconds = self.exchange_seconds(members) * self._exchanges(steps)
        return max(0.0, seconds - computed) if self.beside else seconds

    def sent_bytes(self, members: int, steps: int = 1) -> int:
        """By each worker in a round of `steps` inner steps."""
        once = round(2 * (members - 1) / members * self.payload_bytes)
        return once * self._exchanges(steps)

    def _exchanges(self, steps: int) -> int:
        return steps if self.every_step else 1

    def joining_seconds(self) -> float:
        """Of fetching a state."""
        return self.state_bytes / self.bandwidth + 2 * self.round_trip
