"""How a block of a document is run or read, by its language."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from helpers.repository.mlir_fragments import ELLIPSIS, problem, unknown_ops
from helpers.repository.sources import ROOT

from pcp.tools.pages.fences import Block

LIMIT_S = 1500  # of the long ones; pytest's own limit ends the others
DRAWN = set("─│┌┐└┘├┤┬┴►◄▲▼")


def run_bash(block: Block, folder: Path) -> str:
    """As a user's shell would, but the first failure ends it."""
    return run_command(["bash", "-euo", "pipefail", "-c", block.text], folder)


def run_python(block: Block, folder: Path) -> str:
    return run_command([sys.executable, "-c", block.text], folder)


def parse_mlir(block: Block, folder: Path) -> None:
    """By MLIR; of a sketch, which leaves something out, the ops must exist."""
    if ELLIPSIS in block.text:
        assert unknown_ops(block.text) == []
    else:
        assert problem(block.text) is None


def parse_json(block: Block, folder: Path) -> None:
    json.loads(block.text)


def parse_toml(block: Block, folder: Path) -> None:
    tomllib.loads(block.text)


def is_drawn(block: Block, folder: Path) -> None:
    """Without a language it is a picture, and nothing that could run."""
    assert DRAWN & set(block.text), "say the language behind the fence"


def is_printed(block: Block, output: str) -> None:
    """Its lines stand together in the output.

    `...` is anything on one line, and a line with nothing else any lines, or none.
    """
    printed = "".join(f"{line.strip()}\n" for line in output.splitlines())
    wanted = "".join(_pattern(line.strip()) for line in block.text.splitlines())
    assert re.search(f"^{wanted}", printed, re.MULTILINE), f"{block}: {output}"


def _pattern(line: str) -> str:
    if line == ELLIPSIS:
        return r"(?:.*\n)*?"
    return ".*".join(map(re.escape, line.split(ELLIPSIS))) + r"\n"


RUN = {"bash": run_bash, "python": run_python}
READ_OR_RUN: dict[str, Callable[[Block, Path], object]] = {
    **RUN,
    "mlir": parse_mlir,
    "json": parse_json,
    "toml": parse_toml,
    "": is_drawn,
}


def shell_variables() -> dict[str, str]:
    """Those of a shell that finds this pcp."""
    bin_ = Path(sys.executable).parent
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ours = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    return os.environ | ours


def run_command(command: list[str], folder: Path) -> str:
    """What the command printed; a failure fails the test with it."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=shell_variables(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout
