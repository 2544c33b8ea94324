"""Where a generated script or manifest goes."""

import sys
from pathlib import Path


def write(text: str, path: str | None, command: str) -> None:
    """Into `path`, saying how to go on with `command`; without one, to stdout."""
    if path is None:
        sys.stdout.write(text)
        return
    Path(path).write_text(text, encoding="utf-8")
    print(f"wrote {path}; start it with: {command} {path}")
