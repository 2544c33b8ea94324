"""A plan as one page of HTML that needs nothing else: no network, no script.

`parts` are what stands in it, for another page (`pcp.tools.pages.bundle_page`).
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10

from pcp.errors import counted
from pcp.passes.core.sizes import bytes_text
from pcp.tools.pages.plan import (
    Box,
    Device,
    DevicePlan,
    Exchange,
    Held,
    alike,
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
.mesh { display: grid; gap: 4px; width: fit-content }
.mesh div { border: 1px solid var(--param); border-radius: 4px; padding: 2px 8px;
  font-size: 11px }
.cut { display: inline-block; position: relative; width: 36px; height: 18px;
  vertical-align: middle; overflow: hidden; background: var(--line) }
.cut * { position: absolute; inset: 0 auto auto 0; width: 100%; height: 100% }
.cut b { background: var(--param) } .cut u { border-left: 1px solid }
.cut s { border-top: 1px solid }
.lanes { display: grid; grid-template-columns: max-content 1fr; gap: 6px 12px;
  font-size: 11px }
.lane { position: relative; height: 24px; background: color-mix(in srgb, var(--line)
  40%, transparent) }
.lane * { position: absolute; height: 100%; border-radius: 3px; overflow: hidden;
  color: #fff; text-align: center; line-height: 24px;
  border-right: 1px solid var(--paper) }
.marks { position: relative; height: 14px; color: var(--soft) }
.marks * { position: absolute; transform: translateX(-50%) }
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


def _mesh(plan: DevicePlan) -> str:
    """Devices by their places: the last axis to the right, the others downwards."""
    if not plan.mesh.axes or len(plan.devices) < 2:
        return ""
    *_, width = plan.mesh.axes.values()
    cells = []
    for device in sorted(
        plan.devices, key=lambda d: [d.place[a] for a in plan.mesh.axes]
    ):
        where = " ".join(f"{axis}={i}" for axis, i in device.place.items())
        cells.append(
            f"<div>{escape(device.name)}<br/><span class='soft'>{escape(where)}</span>"
            "</div>"
        )
    columns = f"grid-template-columns:repeat({width},1fr)"
    return (
        f"<h2>Mesh @{escape(plan.mesh.name)}</h2><div class='card'>"
        f"<div class='mesh' style='{columns}'>{''.join(cells)}</div></div>"
    )


def _place(plan: DevicePlan, device: Device) -> list[int]:
    return [device.place[axis] for axis in plan.mesh.axes]


def _layout(held: Held) -> str:
    """The whole tensor, its cuts, and the first part; what is no plane in words."""
    if max(held.cuts, default=1) == 1 or max(held.cuts[:-2], default=1) > 1:
        return held.layout
    across, down = (held.cuts[-1], held.cuts[-2] if len(held.cuts) > 1 else 1)
    first = f"<b style='width:{100 / across:.1f}%;height:{100 / down:.1f}%'></b>"
    # Lines are drawn where one can be told from the next.
    lines = [
        f"<u style='left:{100 * i / across:.1f}%'></u>"
        for i in range(1, across if across <= MANY else 1)
    ] + [
        f"<s style='top:{100 * i / down:.1f}%'></s>"
        for i in range(1, down if down < MANY // 2 else 1)
    ]
    drawn = f"<span class='cut'>{first}{''.join(lines)}</span>"
    return Drawn(f"{drawn} {escape(held.layout)}")


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

#: Marks of time under the timeline, at most.
_MARKS = 12

#: Of the timeline, from which on a box says its microbatch.
_WIDE = 0.013


def _timeline(plan: DevicePlan) -> Iterator[str]:
    """Devices from above, time to the right, a box for each task."""
    if not plan.boxes:
        return
    length = max(box.end for box in plan.boxes)
    keys = "".join(
        _key(d) for d in DIRECTIONS if any(b.direction == d for b in plan.boxes)
    )
    yield (
        f"<h2>Timeline <small class='soft'>waiting {plan.bubble:.1%}{keys}</small></h2>"
        "<div class='card lanes'>"
    )
    for device in plan.devices:
        mine = [box for box in plan.boxes if box.device == device.name]
        boxes = "".join(_box(box, length) for box in mine)
        yield f"<span>{escape(device.name)}</span><div class='lane'>{boxes}</div>"
    yield f"<span></span><div class='marks'>{''.join(_marks(length))}</div></div>"


def _marks(length: float) -> Iterator[str]:
    """Times below the rows, at round distances."""
    step = 10.0 ** floor(log10(length / _MARKS))
    step *= next(n for n in (1, 2, 5, 10) if n * step * _MARKS >= length)
    for i in range(int(length / step) + 1):
        yield f"<span style='left:{100 * i * step / length:.2f}%'>{i * step:g}</span>"


def _box(box: Box, length: float) -> str:
    what = f"{box.direction} of microbatch {box.microbatch}, stage {box.stage}"
    share = (box.end - box.start) / length
    return (
        f"<span title='{what}' style='left:{100 * box.start / length:.2f}%;"
        f"width:{100 * share:.2f}%;background:var(--{box.direction})'>"
        f"{box.microbatch if share > _WIDE else ''}</span>"
    )
