"""What commands print: lines that come at once, lines with the time, JSON."""

import time
from collections.abc import Callable
from typing import TextIO

from pcp import strict_json


def stamped(prefix: str, file: TextIO | None = None) -> Callable[[str], None]:
    """Prints lines with the time and a name; into `file` in place of stdout."""

    def write(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {prefix}: {text}", file=file, flush=True)

    return write


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def to_json(values: object) -> str:
    """Indented JSON."""
    return strict_json.dumps(values, indent=2, default=str)
