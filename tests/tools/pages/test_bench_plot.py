"""The plot of `pcp bench`: what lies where."""

import numpy as np

from pcp.tools.pages.bench_plot import rates


def row(by: str, mib: float, rate: float) -> dict:
    return {"op": "all_reduce", "by": by, "MiB": mib, "ms": 1.0, "Gbit/s": rate}


def test_a_line_for_each_operation_and_by_whom() -> None:
    rows = [row("pcp", 16, 10), row("pcp", 1, 0), row("pcp", 4, 5), row("<b>", 1, 10)]
    from matplotlib.figure import Figure  # each process collects, and few draw

    axes = Figure().add_subplot()
    rates(axes, rows)
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4", "16"]
    assert axes.get_ylim()[0] == 0
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
    assert [*drawn] == ["all_reduce, pcp", "all_reduce, <b>"]
    np.testing.assert_array_equal(
        drawn["all_reduce, pcp"], np.array([(1, 0), (4, 5), (16, 10)])
    )
    np.testing.assert_array_equal(drawn["all_reduce, <b>"], [(1, 10)])
