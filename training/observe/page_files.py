"""The pages of runs as one HTML file each: scripts, styles and data go inside.

`page.html` shows one run, `runs.html` several; `head.html` begins each. Both
draw by uPlot (`training/observe/vendor/`, MIT), and neither needs a server once it has
its data.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pcp import strict_json

Programs = Callable[[Path], Mapping[str, str]]
"""Gives what each program in a run's folder holds, by name, as HTML."""

PARTS = {
    "/*uplot.css*/": "vendor/uplot.css",
    "/*page.css*/": "page.css",
    "/*uplot.js*/": "vendor/uplot.js",
    "/*charts.js*/": "charts.js",
}
"""What stands in a page for a file that goes there."""
DATA = "/*data*/"
EVENTS = 400
"""Lines of a run's journal that its page shows: the newest."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
POLICY += "connect-src 'self'; frame-ancestors 'none'"
"""Of a server of such pages (Content-Security-Policy): nothing comes from elsewhere."""


def no_programs(run: Path) -> Mapping[str, str]:
    """For who has no reader of programs."""
    return {}


def page(name: str, data: Mapping[str, Any] | None = None) -> str:
    """A page with all that it needs; with `data` it asks no server."""
    text = _read("head.html") + _read(name)
    for mark, source in PARTS.items():
        text = text.replace(mark, _read(source))
    # A text of the run may hold `</script>`: no `<` of it stands as such in the page.
    given = "" if data is None else strict_json.dumps(data).replace("<", "\\u003c")
    return text.replace(DATA, given)


def page_head() -> str:
    """The beginning and look of all pages, for those of other rooms without charts."""
    head = _read("head.html").replace("/*uplot.css*/", "")
    return head.replace("/*page.css*/", _read("page.css"))


def _read(name: str) -> str:
    folder = files(__package__ or "pcp.training.observe")
    return folder.joinpath(name).read_text(encoding="utf-8")
