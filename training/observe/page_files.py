"""The pages of runs as single HTML files, with scripts, styles and data inside.

`page.html` shows one run, `runs.html` several; `head.html` begins each. Both draw
curves with uPlot (`training/observe/vendor/`, MIT), and need no server once they have
their data.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pcp import strict_json

Programs = Callable[[Path], Mapping[str, str]]
"""A function that describes each program in a run's folder, by name, as HTML."""

PARTS = {
    "/*uplot.css*/": "vendor/uplot.css",
    "/*page.css*/": "page.css",
    "/*uplot.js*/": "vendor/uplot.js",
    "/*charts.js*/": "charts.js",
}
"""The placeholder of a file in a page."""
DATA = "/*data*/"
EVENTS = 400
"""The most lines of a run's journal in its page, the newest ones."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
POLICY += "connect-src 'self'; frame-ancestors 'none'"
"""The Content-Security-Policy of the pages: no resource comes from another site."""


def no_programs(run: Path) -> Mapping[str, str]:
    """No description of programs."""
    return {}


def page(name: str, data: Mapping[str, Any] | None = None) -> str:
    """A page with its files inside; with `data` it asks no server."""
    text = _read("head.html") + _read(name)
    for mark, source in PARTS.items():
        text = text.replace(mark, _read(source))
    # A text of the run may contain `</script>`: every `<` in the data is escaped.
    given = "" if data is None else strict_json.dumps(data).replace("<", "\\u003c")
    return text.replace(DATA, given)


def page_head() -> str:
    """The head and style of all pages, for pages of other rooms without charts."""
    head = _read("head.html").replace("/*uplot.css*/", "")
    return head.replace("/*page.css*/", _read("page.css"))


def _read(name: str) -> str:
    folder = files(__package__ or "pcp.training.observe")
    return folder.joinpath(name).read_text(encoding="utf-8")
