"""The plot of `pcp bench`: where its points lie."""

from xml.etree import ElementTree

from pcp.tools.pages.bench_plot import svg


def row(by: str, mib: float, rate: float) -> dict:
    return {"op": "all_reduce", "by": by, "MiB": mib, "ms": 1.0, "Gbit/s": rate}


def points(drawn: str) -> list[list[tuple[float, float]]]:
    """The lines of a plot."""
    root = ElementTree.fromstring(drawn)
    lines = [part.get("points") for part in root.iter() if "polyline" in part.tag]
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in line.split())]
        for line in lines
        if line
    ]


def test_sizes_are_logarithmic_and_rates_are_not() -> None:
    rows = [row("pcp", 1, 0), row("pcp", 4, 5), row("pcp", 16, 10), row("<b>", 1, 10)]
    first, second = points(svg(rows))
    xs, ys = zip(*first, strict=True)
    assert xs[1] - xs[0] == xs[2] - xs[1] > 0
    assert ys[0] - ys[1] == ys[1] - ys[2] > 0
    assert second == [(xs[0], ys[2])]


def test_a_single_size_has_a_place() -> None:
    assert len(points(svg([row("pcp", 1, 3)]))[0]) == 1
