"""A plan as one page of HTML that needs nothing else: no network, no script.

`parts` are what stands in it, for another page (`pcp.tools.pages.bundle_page`).
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import product
from math import floor, log10

from pcp.errors import counted
from pcp.tools.pages.plan import (
    Box,
    Device,
    DevicePlan,
    Exchange,
    Held,
    alike,
    bytes_text,
)

#: Rows of a table before the rest is folded away.
SHOWN = 12

#: Devices from which on their cards are small.
MANY = 17

STYLE = """
:root, :host { --ink: #1c2430; --soft: #66707f; --line: #dfe3ea; --paper: #fff;
  --ground: #f5f6f9; --param: #3b6fb6; --state: #8a5fb0; --data: #2f9e77;
  --other: #9aa3b0; --fwd: #3b6fb6; --bwd: #c8602a; --wgrad: #a87a12; --opt: #8a5fb0 }
@media (prefers-color-scheme: dark) { :root, :host { --ink: #e8ebf0; --soft: #98a2b3;
  --line: #333b48; --paper: #1d232d; --ground: #14181f } }
* { box-sizing: border-box }
body { margin: 0; padding: 2rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1100px; margin: auto }
h1 { font-size: 1.5rem; margin: 0 0 .2rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem }
p, .soft { color: var(--soft); margin: .2rem 0 }
.devices { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)) }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; overflow-x: auto }
.card b { display: block } .bar { display: flex; height: 8px; border-radius: 4px;
  overflow: hidden; background: var(--line); margin: .5rem 0 }
.many { gap: .4rem; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)) }
.many .card { padding: .4rem .6rem; font-size: 12px } .many .bar { margin: .3rem 0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 500 }
td, th { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right } code { font: 13px ui-monospace, monospace }
details { margin: .8rem 0 } summary { cursor: pointer }
i.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin: 0 .3em 0 1em }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) }
svg .in { fill: #fff; text-anchor: middle }
svg .at { fill: var(--soft); text-anchor: middle }
"""
ROLES = ("param", "state", "data", "other")
DIRECTIONS = ("fwd", "bwd", "wgrad", "opt")


class Drawn(str):
    """A cell of a table that is HTML already."""


def page(plan: DevicePlan) -> str:
    """The whole document."""
    return document(plan.title, [_head(plan), *parts(plan)])


def document(title: str, inside: Sequence[str]) -> str:
    """A page of these parts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/>'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(inside)}\n</main></body></html>\n"
    )


def parts(plan: DevicePlan) -> list[str]:
    """What a plan draws: its mesh, time, communication, and what devices hold."""
    return [
        _mesh(plan),
        *_timeline(plan),
        *_totals(plan),
        _devices(plan),
        *_details(plan),
    ]


def _head(plan: DevicePlan) -> str:
    axes = " by ".join(f"{escape(a)} {n}" for a, n in plan.mesh.axes.items())
    weights = "; ".join(
        f"{escape(axis)} shared {' : '.join(map(str, w))}"
        for axis, w in plan.mesh.weights.items()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in plan.notes)
    shared = f"<p>{weights}</p>" if weights else ""
    return (
        f"<h1>{escape(plan.title)}</h1><p>{counted(len(plan.devices), 'device')}: "
        f"mesh @{escape(plan.mesh.name)}, {axes}</p>{shared}{notes}"
    )


# --- the mesh ---

_CELL_W, _CELL_H = 116, 40


def _mesh(plan: DevicePlan) -> str:
    """Devices by their places: the last axis to the right, the others downwards."""
    axes = list(plan.mesh.axes.items())
    if not axes or len(plan.devices) < 2:
        return ""
    *outer, (inner, width) = axes
    rows = list(product(*(range(n) for _, n in outer)))
    drawn = []
    for device in plan.devices:
        place = tuple(device.place[axis] for axis, _ in outer)
        x, y = device.place[inner] * _CELL_W, rows.index(place) * _CELL_H
        where = " ".join(f"{axis}={i}" for axis, i in device.place.items())
        drawn.append(
            f"<rect x='{x + 1}' y='{y + 1}' width='{_CELL_W - 4}' "
            f"height='{_CELL_H - 4}' rx='4' fill='none' stroke='var(--param)'/>"
            f"<text x='{x + 8}' y='{y + 17}'>{escape(device.name)}</text>"
            f"<text class='at' style='text-anchor:start' x='{x + 8}' y='{y + 31}'>"
            f"{escape(where)}</text>"
        )
    size = f"width='{width * _CELL_W}' height='{len(rows) * _CELL_H}'"
    picture = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{''.join(drawn)}</svg>"
    return f"<h2>Mesh @{escape(plan.mesh.name)}</h2><div class='card'>{picture}</div>"


def _layout(held: Held) -> str:
    """The whole tensor, its cuts, and the first part; what is no plane in words."""
    if max(held.cuts, default=1) == 1 or max(held.cuts[:-2], default=1) > 1:
        return held.layout
    across, down = (held.cuts[-1], held.cuts[-2] if len(held.cuts) > 1 else 1)
    width, height = 36, 18
    lines = [
        f"<path d='M{width * i / across:.1f} 0V{height}' stroke='var(--ink)'/>"
        for i in range(1, min(across, width // 2))
    ] + [
        f"<path d='M0 {height * i / down:.1f}H{width}' stroke='var(--ink)'/>"
        for i in range(1, min(down, height // 2))
    ]
    return Drawn(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>"
        f"<rect width='{width}' height='{height}' fill='var(--line)'/>"
        f"<rect width='{width / across:.1f}' height='{height / down:.1f}' "
        f"fill='var(--param)'/>{''.join(lines)}</svg> {escape(held.layout)}"
    )


# --- devices ---


def _role(role: str) -> str:
    return role if role in ROLES else "other"


def _devices(plan: DevicePlan) -> str:
    if not any(device.held for device in plan.devices):
        return ""
    most = max(device.bytes for device in plan.devices) or 1
    cards = "\n".join(_card(device, most) for device in plan.devices)
    keys = "".join(_key(role) for role in ROLES)
    size = "devices many" if len(plan.devices) >= MANY else "devices"
    return (
        f"<h2>What each device holds <small class='soft'>{keys}</small></h2>"
        f"<div class='{size}'>{cards}</div>"
    )


def _key(name: str) -> str:
    return f"<i class='key' style='background:var(--{name})'></i>{name}"


def _card(device: Device, most: int) -> str:
    place = " ".join(f"{a}={i}" for a, i in device.place.items())
    sizes: dict[str, int] = dict.fromkeys(ROLES, 0)
    for tensor in device.held:
        sizes[_role(tensor.role)] += tensor.bytes
    bars = "".join(
        f"<span title='{role}: {bytes_text(size)}' style='background:var(--{role});"
        f"width:{100 * size / most:.2f}%'></span>"
        for role, size in sizes.items()
        if size
    )
    sent = sum(e.bytes for e in device.exchanges)
    return (
        f"<div class='card'><b>{escape(device.name)}</b>"
        f"<span class='soft'>{escape(place)}</span><div class='bar'>{bars}</div>"
        f"{bytes_text(device.bytes)} in {counted(len(device.held), 'tensor')}<br/>"
        f"<span class='soft'>{counted(len(device.exchanges), 'collective')}, "
        f"{bytes_text(sent)}</span></div>"
    )


# --- communication ---


def _totals(plan: DevicePlan) -> Iterator[str]:
    totals = plan.totals()
    if not totals:
        return
    rows = [
        (", ".join(axes) or "from device to device", str(count), bytes_text(size))
        for axes, (count, size) in totals.items()
    ]
    yield "<h2>Communication over each axis, on the busiest device</h2>"
    yield table(("axes", "#collectives", "#bytes"), rows)


def _details(plan: DevicePlan) -> Iterator[str]:
    """Tensors and collectives in order, once for devices that are alike."""
    for names, device in alike(plan.devices):
        if not device.held and not device.exchanges:
            continue
        listed = ", ".join(names[:6]) + (
            f" and {len(names) - 6} more" * (len(names) > 6)
        )
        is_open = " open='open'" if device is plan.devices[0] else ""
        yield (
            f"<details{is_open}><summary><b>{escape(listed)}</b>, "
            f"module {escape(device.module)}</summary><div class='card'>"
        )
        held = sorted(device.held, key=lambda h: -h.bytes)
        yield table(
            ("tensor", "role", "part", "layout", "first read at line", "#bytes"),
            [
                (
                    h.name,
                    h.role,
                    f"{h.dtype}[{', '.join(map(str, h.shape))}]",
                    _layout(h),
                    h.line,
                    bytes_text(h.bytes),
                )
                for h in held
            ],
        )
        yield table(
            ("step", "in", "collective", "axes", "group", "#bytes"),
            [_exchange(i, e) for i, e in enumerate(device.exchanges)],
        )
        yield "</div></details>"


def _exchange(number: int, e: Exchange) -> tuple[str, ...]:
    few = ", ".join(e.members[:4])
    group = few if len(e.members) <= 4 else f"{few}, … ({len(e.members)})"
    axes = ", ".join(e.axes)
    return (str(number), e.function, e.kind, axes, group, bytes_text(e.bytes))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a column whose title starts with # is of numbers.

    The cells that are `Drawn` stand as they are.
    """
    if not rows:
        return ""
    kinds = [" class='n'" if title.startswith("#") else "" for title in header]

    def row(cells: Sequence[str], tag: str) -> str:
        inside = "".join(
            f"<{tag}{kind}>{cell if isinstance(cell, Drawn) else escape(cell)}</{tag}>"
            for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{inside}</tr>"

    def of(body: Sequence[Sequence[str]]) -> str:
        head = row([title.removeprefix("#") for title in header], "th")
        inside = "\n".join(row(cells, "td") for cells in body)
        return f"<table>{head}\n{inside}</table>"

    if len(rows) <= SHOWN:
        return of(rows)
    rest = f"<details><summary>{len(rows) - SHOWN} more</summary>{of(rows[SHOWN:])}"
    return of(rows[:SHOWN]) + rest + "</details>"


# --- the timeline ---

_ROW, _LEFT, _WIDTH, _FOOT = 30, 110, 940, 22

#: Marks of time under the timeline, at most.
_MARKS = 12


def _timeline(plan: DevicePlan) -> Iterator[str]:
    """Devices from above, time to the right, a box for each task."""
    if not plan.boxes:
        return
    length = max(box.end for box in plan.boxes)
    scale = _WIDTH / length
    names = [device.name for device in plan.devices]
    height = _ROW * len(names) + 6
    keys = "".join(
        _key(d) for d in DIRECTIONS if any(b.direction == d for b in plan.boxes)
    )
    yield (
        f"<h2>Timeline <small class='soft'>waiting {plan.bubble:.1%}{keys}</small></h2>"
        f"<div class='card'><svg xmlns='http://www.w3.org/2000/svg' width='100%' "
        f"viewBox='0 0 {_LEFT + _WIDTH + 12} {height + _FOOT}'>"
    )
    for i, name in enumerate(names):
        yield f"<text x='0' y='{i * _ROW + 20}'>{escape(name)}</text>"
        yield (
            f"<rect x='{_LEFT}' y='{i * _ROW + 4}' width='{_WIDTH}' "
            f"height='{_ROW - 6}' fill='var(--line)' opacity='.4'/>"
        )
    row = {name: i for i, name in enumerate(names)}
    yield from (_box(box, row[box.device], scale) for box in plan.boxes)
    yield from _marks(length, scale, height)
    yield "</svg></div>"


def _marks(length: float, scale: float, height: int) -> Iterator[str]:
    """Times below the rows, at round distances."""
    step = 10.0 ** floor(log10(length / _MARKS))
    step *= next(n for n in (1, 2, 5, 10) if n * step * _MARKS >= length)
    for i in range(int(length / step) + 1):
        x = _LEFT + i * step * scale
        yield f"<text class='at' x='{x:.1f}' y='{height + 12}'>{i * step:g}</text>"


def _box(box: Box, row: int, scale: float) -> str:
    x, y = _LEFT + box.start * scale, row * _ROW + 4
    width = (box.end - box.start) * scale
    what = f"{box.direction} of microbatch {box.microbatch}, stage {box.stage}"
    number = (
        f"<text class='in' x='{x + width / 2:.1f}' y='{y + 16}'>{box.microbatch}</text>"
        if width > 12
        else ""
    )
    return (
        f"<g><title>{what}</title><rect x='{x:.1f}' y='{y}' width='{width - 1:.1f}' "
        f"height='{_ROW - 6}' rx='3' fill='var(--{box.direction})'/>{number}</g>"
    )
