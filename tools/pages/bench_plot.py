"""The plot of `pcp bench`: rates over sizes, as an SVG written by hand."""

import math
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 20, 50
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def svg(rows: list[dict[str, Any]]) -> str:
    """Gbit/s over MiB (a logarithmic axis), a line for each operation and by whom."""
    sizes = sorted({row["MiB"] for row in rows})
    top = max(row["Gbit/s"] for row in rows) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for size in sizes:
        parts.append(_text(_x(size, sizes), _HEIGHT - 30, f"{size:g}", "middle"))
    for tick in range(5):
        rate = top * tick / 4
        y = _y(rate, top)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd" fill="none"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{rate:.3g}", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "MiB", "middle"))
    parts.append(_text(8, 14, "Gbit/s a member sends", "start"))
    for index, name in enumerate(dict.fromkeys((r["op"], r["by"]) for r in rows)):
        mine = sorted(
            (r["MiB"], r["Gbit/s"]) for r in rows if (r["op"], r["by"]) == name
        )
        points = [(_x(size, sizes), _y(rate, top)) for size, rate in mine]
        parts += _line(points, ", ".join(name), index)
    return "\n".join([*parts, "</svg>\n"])


def _line(points: list[tuple[float, float]], name: str, index: int) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    dashes = ' stroke-dasharray="6 3"' if index >= len(_COLOURS) else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    y = _TOP + 16 + 18 * index
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="2"{dashes}/>',
        *(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
            for x, y in points
        ),
        f'<g fill="{colour}">{_text(_WIDTH - _RIGHT + 14, y, name, "start")}</g>',
    ]


def _x(size: float, sizes: list[float]) -> float:
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    share = (math.log(size) - first) / (last - first) if last > first else 0.5
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(rate: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - rate / top * (_HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, what: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(what)}</text>'
