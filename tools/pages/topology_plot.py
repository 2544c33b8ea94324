"""A network of members as a picture.

Members stand on a circle in the order of their ring, whose edges are the thick
arrows. Of the other edges the slower are darker, so that what the ring avoids
can be seen.
"""

import math
from collections.abc import Container
from itertools import permutations

import numpy as np

from pcp.runtime.topology.topology import Topology
from pcp.tools.pages.svg import Axes

_ALL_EDGES_UP_TO = 16
_RING = "#0072b2"
RING, OTHER = "ring", "edge"
"""What an arrow of the ring is called in the picture, and any other edge."""


def network(axes: Axes, topology: Topology) -> None:
    """The picture of a topology."""
    axes.set_axis_off()
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
    axes.set_title(f"MB/s; ring {' > '.join(map(str, topology.order))}", fontsize=10)
    turn = 2 * math.pi / topology.size
    places = {
        rank: np.array([math.sin(turn * at), math.cos(turn * at)])
        for at, rank in enumerate(topology.order)
    }
    ring = {(a, b): rate for a, b, rate in topology.ring_edges()}
    if topology.size <= _ALL_EDGES_UP_TO:
        _others(axes, topology, places, ring.keys())
    for (a, b), rate in ring.items():
        _arrow(axes, places[a], places[b], RING, "-|>", color=_RING, lw=2.5)
        middle = 1.06 * (places[a] + places[b]) / 2
        axes.text(*middle, f"{rate / 1e6:.0f}", color=_RING, ha="center")
    circle = {"boxstyle": "circle", "fc": "white"}
    for rank, place in places.items():
        name = topology.profiles[rank].name
        axes.text(*place, str(rank), ha="center", va="center", bbox=circle)
        axes.text(*(1.25 * place), name, ha="center", va="center", parse_math=False)


def _others(
    axes: Axes,
    topology: Topology,
    places: dict[int, np.ndarray],
    ring: Container[tuple[int, int]],
) -> None:
    """The edges that the ring leaves, the slow ones on top."""
    edges = [edge for edge in permutations(places, 2) if edge not in ring]
    edges.sort(key=lambda edge: -topology.bandwidth[edge])
    rates = np.array([topology.bandwidth[edge] for edge in edges])
    for (a, b), rate in zip(edges, rates, strict=True):
        share = (rate - rates.min()) / (np.ptp(rates) or 1.0)
        # Bent: the two directions of a pair lie apart. A grey from dark to light.
        look = {"color": f"{0.3 + 0.6 * share:.3f}"}
        _arrow(axes, places[a], places[b], OTHER, "-", rad=0.17, **look)


def _arrow(
    axes: Axes,
    start: np.ndarray,
    end: np.ndarray,
    name: str,
    style: str,
    rad: float = 0.0,
    **look: object,
) -> None:
    bent = {"arrowstyle": style, "connectionstyle": f"arc3,rad={rad}"}
    ends = {"shrinkA": 14, "shrinkB": 14}
    axes.annotate("", end, start, arrowprops={**bent, **ends, **look}).set_gid(name)
