"""What commands print: lines that come at once, lines with the time, JSON."""

from collections.abc import Callable
from typing import TextIO

from pcp import strict_json
from pcp.training.observe.log_lines import log_line


def stamped(prefix: str, file: TextIO | None = None) -> Callable[[str], None]:
    """Prints lines with the time and a name; into `file` in place of stdout."""

    def write(text: str) -> None:
        print(log_line(f"{prefix}: {text}"), file=file, flush=True)

    return write


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def to_json(values: object) -> str:
    """Indented JSON."""
    return strict_json.dumps(values, indent=2, default=str)
