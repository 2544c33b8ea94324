"""A network of members as a picture: an SVG written by hand.

Members stand on a circle in the order of their ring, whose edges are the thick
arrows. Of the other edges the slower are darker, so that what the ring avoids
can be seen.
"""

import math
from xml.sax.saxutils import escape

import numpy as np

from pcp.runtime.topology.topology import Topology

_SIZE, _RADIUS, _NODE = 640, 220, 22
_ALL_EDGES_UP_TO = 16
_RING, _SLOW, _FAST = "#0072b2", (120, 50, 0), (235, 225, 215)


def svg(topology: Topology) -> str:
    """The picture of a topology."""
    places = _places(topology)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIZE}" height="{_SIZE}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_SIZE}" height="{_SIZE}" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="5" '
        f'markerHeight="5" orient="auto"><path d="M0 0L8 4L0 8z" fill="{_RING}"/>'
        "</marker></defs>",
    ]
    ring = {(a, b) for a, b, _ in topology.ring_edges()}
    if topology.size <= _ALL_EDGES_UP_TO:
        parts += _others(topology, places, ring)
    for a, b, rate in topology.ring_edges():
        parts += _arrow(places[a], places[b], rate)
    for rank, place in places.items():
        parts += _member(rank, topology.profiles[rank].name, place)
    title = f"MB/s; ring {' > '.join(map(str, topology.order))}"
    parts.append(f'<text x="12" y="22">{escape(title)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _places(topology: Topology) -> dict[int, tuple[float, float]]:
    turn = 2 * math.pi / topology.size
    middle = _SIZE / 2
    return {
        rank: (
            middle + _RADIUS * math.sin(turn * at),
            middle - _RADIUS * math.cos(turn * at),
        )
        for at, rank in enumerate(topology.order)
    }


def _others(
    topology: Topology,
    places: dict[int, tuple[float, float]],
    ring: set[tuple[int, int]],
) -> list[str]:
    """The edges that the ring leaves, the slow ones on top."""
    edges = [
        (a, b)
        for a in range(topology.size)
        for b in range(topology.size)
        if a != b and (a, b) not in ring
    ]
    edges.sort(key=lambda edge: -topology.bandwidth[edge])
    rates = np.array([topology.bandwidth[edge] for edge in edges])
    lines = []
    for edge, rate in zip(edges, rates, strict=True):
        (x0, y0), (x1, y1) = places[edge[0]], places[edge[1]]
        share = (rate - rates.min()) / (np.ptp(rates) or 1.0)
        lines.append(
            f'<path d="M{x0:.1f} {y0:.1f}Q{_bend(x0, y0, x1, y1)} {x1:.1f} {y1:.1f}" '
            f'fill="none" stroke="{_colour(share)}"><title>{edge[0]} to {edge[1]}: '
            f"{rate / 1e6:.0f} MB/s</title></path>"
        )
    return lines


def _bend(x0: float, y0: float, x1: float, y1: float) -> str:
    """A point beside the middle: the two directions of a pair lie apart."""
    return f"{(x0 + x1) / 2 - (y1 - y0) / 12:.1f} {(y0 + y1) / 2 + (x1 - x0) / 12:.1f}"


def _colour(share: float) -> str:
    mixed = (
        round(s + share * (f - s)) for s, f in zip(_SLOW, _FAST, strict=True)
    )  # fmt: skip
    return f"rgb({','.join(map(str, mixed))})"


def _arrow(
    start: tuple[float, float], end: tuple[float, float], rate: float
) -> list[str]:
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = _NODE * (x1 - x0) / length, _NODE * (y1 - y0) / length
    middle = (0.5 * (x0 + x1), 0.5 * (y0 + y1))
    return [
        f'<path d="M{x0 + dx:.1f} {y0 + dy:.1f}L{x1 - dx:.1f} {y1 - dy:.1f}" '
        f'stroke="{_RING}" stroke-width="3" fill="none" marker-end="url(#tip)" '
        'class="ring"/>',
        f'<text x="{middle[0]:.1f}" y="{middle[1] - 6:.1f}" text-anchor="middle" '
        f'fill="{_RING}">{rate / 1e6:.0f}</text>',
    ]


def _member(rank: int, name: str, place: tuple[float, float]) -> list[str]:
    x, y = place
    outward = 38 if y >= _SIZE / 2 else -30
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE}" fill="white" stroke="black"/>',
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{rank}</text>',
        f'<text x="{x:.1f}" y="{y + outward:.1f}" text-anchor="middle">'
        f"{escape(name)}</text>",
    ]
