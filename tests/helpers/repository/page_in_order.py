"""The blocks of a page from top to bottom, as a reader runs them in a notebook.

All are run by one process, in one folder: what a Python block names the next ones know.
A block with a title is written as a file, a `bash` block is run by a shell, and what a
block printed is kept beside it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pcp.tools.pages.fences import Block

_DRIVER = """
import json, subprocess, sys, types
from pathlib import Path

page = types.ModuleType("__main__")
blocks = json.load(sys.stdin)
sys.modules["__main__"], sys.stdin = page, None
for number, block in enumerate(blocks):
    text = block["text"]
    if block["title"]:
        Path(block["title"]).parent.mkdir(parents=True, exist_ok=True)
        Path(block["title"]).write_text(text)
    elif block["language"] == "bash":
        sys.stdout.flush()
        subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
    elif block["language"] == "python":
        lines = "\\n" * block["line"]
        exec(compile(lines + text, block["file"], "exec"), vars(page))
    print("\\f", end="", flush=True)
"""
RUN = ("bash", "python")
"""The languages of blocks that a page runs; a `text` block is what one printed."""


def run_page(
    blocks: Sequence[Block],
    folder: Path,
    variables: Mapping[str, str],
    limit: int,
    python: Path | str = sys.executable,
) -> list[tuple[Block, str]]:
    """Each block that was run, with what it printed; the first failure is an error."""
    asked = [one for one in blocks if one.title or one.language in RUN]
    done = subprocess.run(
        [str(python), "-c", _DRIVER],
        input=json.dumps([vars(one) for one in asked]),
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return list(zip(asked, done.stdout.split("\f")[:-1], strict=True))
