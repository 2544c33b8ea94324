"""The plot of `pcp bench`: rates over sizes."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pcp.tools.pages.svg import Axes


def rates(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Gbit/s over MiB (a logarithmic axis), a line for each operation and by whom."""
    by = {name: [*of] for name, of in groupby(sorted(rows, key=_name), key=_name)}
    for name in dict.fromkeys(map(_name, rows)):
        points = sorted((row["MiB"], row["Gbit/s"]) for row in by[name])
        axes.plot(*zip(*points, strict=True), "o-", label=", ".join(name))
    sizes = sorted({row["MiB"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes], minor=False)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("MiB")
    axes.set_ylabel("Gbit/s a member sends")
    axes.grid(axis="y", alpha=0.4)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _name(row: dict[str, Any]) -> tuple[str, str]:
    return row["op"], row["by"]
