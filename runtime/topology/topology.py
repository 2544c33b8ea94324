"""The network of the members: the rates of its edges, and the ring that suits them.

`link_probe` measures the edges, `ring_order` finds the order, and `topology_aware` has
a communicator's methods for both. A `Topology` is the result: it can be printed
(`text`), drawn (`pcp bench topology --plot`), and kept in a file (`to_json`).
"""

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.runtime.topology.ring_order import Order, worth
from pcp.wire import Distance

REFERENCE_BYTES = 64 << 20
"""The size (bytes) of the all-reduce that edges are compared by, by default."""


@dataclass(frozen=True)
class Profile:
    """A member's machine: names, processors, bytes of memory."""

    name: str
    host: str = ""
    cores: int = 0
    memory: int = 0
    system: str = ""

    @classmethod
    def own(cls, name: str) -> "Profile":
        """The profile of this process."""
        return cls(
            name=name,
            host=socket.gethostname(),
            cores=os.cpu_count() or 0,
            memory=_memory(),
            system=f"{platform.system()} {platform.machine()}",
        )


@dataclass(frozen=True)
class Topology:
    """Edges between all members, and their ring.

    `latency[i, j]` is in seconds one way, `bandwidth[i, j]` in bytes a second from
    i to j; the diagonals mean nothing. `gain` is by how much faster a large
    all-reduce should be than along the ring before (1.0: as fast).
    """

    epoch: int
    profiles: tuple[Profile, ...]
    latency: NDArray
    bandwidth: NDArray
    order: Order
    gain: float = 1.0

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.profiles)

    def costs(self, nbytes: int = REFERENCE_BYTES) -> NDArray:
        """Seconds that a ring step of an all-reduce takes on each edge."""
        return edge_costs(self.latency, self.bandwidth, nbytes)

    def seconds(
        self, nbytes: int = REFERENCE_BYTES, order: Sequence[int] | None = None
    ) -> float:
        """Seconds that an all-reduce of so many bytes should take along a ring."""
        return ring_seconds(self.costs(nbytes), self.order if order is None else order)

    def text(self) -> str:
        """A table of the members, the edges and the ring."""
        ring = " > ".join(map(str, (*self.order, self.order[0])))
        used = {(a, b) for a, b, _ in self.ring_edges()}
        lines = [f"epoch {self.epoch}, {self.size} members", ""]
        lines += [
            f"{rank:>4}  {p.name}  {p.host}  {p.cores} cores  "
            f"{p.memory / 2**30:.1f} GiB  {p.system}"
            for rank, p in enumerate(self.profiles)
        ]
        lines += ["", "MB/s (ms one way) from row to column; * is in the ring"]
        lines.append("    " + "".join(f"{rank:>20}" for rank in range(self.size)))
        for a in range(self.size):
            cells = [self._cell(a, b, (a, b) in used) for b in range(self.size)]
            lines.append(f"{a:>4}" + "".join(f"{cell:>20}" for cell in cells))
        seconds = self.seconds()
        size = REFERENCE_BYTES >> 20
        lines += ["", f"ring {ring}", f"{size} MiB should take {1e3 * seconds:.1f} ms"]
        return "\n".join(lines)

    def ring_edges(self) -> list[tuple[int, int, float]]:
        """(from, to, bytes a second) along the ring."""
        onward = (*self.order[1:], self.order[0])
        pairs = zip(self.order, onward, strict=True)
        return [(a, b, float(self.bandwidth[a, b])) for a, b in pairs if a != b]

    def to_json(self) -> str:
        """The topology as text; `from_json` reads it."""
        whole: dict[str, Any] = {
            "epoch": self.epoch,
            "profiles": [asdict(profile) for profile in self.profiles],
            "latency": self.latency.tolist(),
            "bandwidth": self.bandwidth.tolist(),
            "order": list(self.order),
            "gain": self.gain,
        }
        return strict_json.dumps(whole, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Topology":
        """The topology that `to_json` wrote; ConfigError for other text."""
        try:
            whole = strict_json.parse(text)
            return cls(
                epoch=int(whole["epoch"]),
                profiles=tuple(Profile(**facts) for facts in whole["profiles"]),
                latency=np.array(whole["latency"], float),
                bandwidth=np.array(whole["bandwidth"], float),
                order=tuple(int(rank) for rank in whole["order"]),
                gain=float(whole["gain"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"this is no topology: {error!r}") from None

    def _cell(self, a: int, b: int, used: bool) -> str:
        if a == b:
            return "-"
        rate, late = self.bandwidth[a, b] / 1e6, 1e3 * self.latency[a, b]
        return f"{rate:.0f} ({late:.2f}){'*' if used else ' '}"


def distance_of(latency: NDArray, bandwidth: NDArray) -> Distance | None:
    """The farthest and the slowest edge; None of one member alone."""
    edges = ~np.eye(len(latency), dtype=bool)
    if not edges.any():
        return None
    return Distance(2 * float(latency[edges].max()), float(bandwidth[edges].min()))


def edge_costs(latency: NDArray, bandwidth: NDArray, nbytes: int) -> NDArray:
    """Seconds for a member's part of an array of `nbytes` over each edge."""
    with np.errstate(divide="ignore"):
        costs = latency + nbytes / len(latency) / bandwidth
    np.fill_diagonal(costs, 0.0)
    return costs


def ring_seconds(costs: NDArray, order: Sequence[int]) -> float:
    """Seconds of 2(N-1) ring steps, each as long as the slowest edge takes."""
    return 2 * (len(order) - 1) * worth(costs, order)[0]


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0  # a system that does not say
