"""A function's dispatches as rows: for people, for programs, and as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pcp.errors import MissingPackage, install
from pcp.tools.profile.figures import Dispatch, Peak, Times

_HEAD = ("ms", "share", "calls", "GFLOP/s", "of peak", "GB/s", "line", "dispatch")


@dataclass(frozen=True)
class Row:
    """A dispatch of one call of the function.

    Rates are 0.0 where nothing of the kind is done, or what it does is not known;
    `of_peak` is the larger share of the two peaks, None without peaks.
    """

    name: str
    ms: float
    share: float
    calls: int
    gflops: float
    gbytes: float
    of_peak: float | None
    line: int
    op: str


def rows(times: Times, known: dict[str, Dispatch], peak: Peak | None) -> Iterator[Row]:
    """The rows of a function, longest first, without their `op`."""
    total = sum(one.ms for one in times.dispatches) or 1.0
    for one in times.dispatches:
        work = known.get(one.name, Dispatch(0, 0, 0))
        each = one.ms / one.calls / 1e3 or 1e-9
        flops, moved = work.flops / each, work.bytes / each
        of_peak = None
        if peak is not None:
            of_peak = max(flops / peak.flops, moved / peak.bytes)
        yield Row(
            name=one.name,
            ms=one.ms,
            share=one.ms / total,
            calls=one.calls,
            gflops=flops / 1e9,
            gbytes=moved / 1e9,
            of_peak=of_peak,
            line=work.line,
            op="",
        )


def text(found: Sequence[Row], function: str) -> Iterator[str]:
    """The rows as aligned columns."""
    cells = [_HEAD, *(_cells(row, function) for row in found)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEAD) - 1)]
    for row in cells:
        numbers = (cell.rjust(w) for cell, w in zip(row, widths, strict=False))
        yield "  ".join([*numbers, row[-1]]).rstrip()


def _cells(row: Row, function: str) -> tuple[str, ...]:
    name = row.name.removeprefix(f"{function}_dispatch_")
    what = f"{name}  {row.op}" if row.op else name
    return (
        f"{row.ms:.3f}",
        f"{row.share:.1%}",
        str(row.calls),
        f"{row.gflops:.1f}" if row.gflops else "",
        "" if row.of_peak is None else f"{row.of_peak:.0%}",
        f"{row.gbytes:.1f}" if row.gbytes else "",
        str(row.line or ""),
        what,
    )


def as_json(found: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as JSON has them."""
    return [asdict(row) for row in found]


def draw(found: Sequence[Row], title: str, path: Path) -> None:
    """A bar for each row, longest on top, into a picture that matplotlib can write."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage(f"-o needs matplotlib: {install('train')}") from error
    figure = Figure(figsize=(10, 0.8 + 0.25 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([row.name for row in found], [row.ms for row in found])
    axes.invert_yaxis()
    axes.set_xlabel("ms a call")
    axes.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
