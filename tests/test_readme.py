"""The tour's Python, run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.repository.block_runs import run_bash
from helpers.repository.sources import ROOT
from helpers.servers.processes import free_port

from pcp.tools.pages.fences import Block


def _blocks() -> list[str]:
    text = (ROOT / "docs/tour.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_a_model_of_jax_is_compiled_and_differentiated(tmp_path: Path) -> None:
    (block,) = (b for b in _blocks() if "from_jax" in b)
    check = "\nassert gradients[0].shape == w.shape and np.any(gradients[0])"
    subprocess.run(
        [sys.executable, "-c", block + check], cwd=tmp_path, check=True, timeout=120
    )


def test_what_its_commands_write_is_ignored_by_git() -> None:
    text = (ROOT / "docs/tour.md").read_text()
    written = set(re.findall(r"(?:-o|--out|--keep-ir) ([\w.]+)", text))
    assert {"grads.npz", "plan.html", "cluster.json", "model.mlir", "ir"} <= written
    paths = [name if "." in name else f"{name}/" for name in sorted(written)]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ignored.stdout.split() == paths


def test_four_processes_sum(tmp_path: Path) -> None:
    (block,) = (b for b in _blocks() if "Communicator.connect" in b)
    assert "29500" in block
    block = block.replace("29500", str(free_port())).replace(
        "comm.barrier()", "assert (future.result(30) == 6).all()\ncomm.barrier()"
    )
    members = [
        subprocess.Popen([sys.executable, "-c", block, str(rank)], cwd=tmp_path)
        for rank in range(4)
    ]
    try:
        assert [one.wait(60) for one in members] == [0] * 4
    finally:
        for one in members:
            one.kill()
            one.wait()


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.slow
def test_make_demo_trains(tmp_path: Path) -> None:
    """What `make demo` runs, behind the installation, in a clone; with fewer rounds."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=100)
    told = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"],
        cwd=clone,
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    (command,) = (s for s in told.stdout.splitlines() if s.startswith(".venv/bin/pcp"))
    text = f"{command.removeprefix('.venv/bin/')} --set outer_loop_steps=3"
    run_bash(Block("README.md", 1, "bash", text), clone)
    assert list(clone.glob("runs/*/checkpoints/round_00000003"))
