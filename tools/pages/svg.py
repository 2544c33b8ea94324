"""Pictures as SVG text, drawn by matplotlib: the same bytes each time."""

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

from pcp.errors import MissingPackage, install

Axes = Any
"""matplotlib's, which is imported when a picture is asked for."""


def needs_matplotlib() -> None:
    """`MissingPackage` where nothing can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        needs = f"pictures need matplotlib: {install('train')}"
        raise MissingPackage(needs) from error


def svg(
    draw: Callable[[Axes], None], name: str, size: tuple[float, float] = (7.2, 2.8)
) -> str:
    """What `draw` puts on empty axes, of `size` inches; `name` is of this picture."""
    needs_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.size": 11,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.MULTILINE)
