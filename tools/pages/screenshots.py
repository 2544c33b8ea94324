"""The pictures of pages, `docs/pictures/*.png`: two runs, one whose worker is killed.

python -m pcp.tools.pages.screenshots

It trains for some minutes, and has the browser `chromium` draw what a user sees.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pcp import strict_json
from pcp.errors import MissingPackage, PcpError
from pcp.tools.pages.bundle_page import programs
from pcp.tools.pages.places import PICTURES, ROOT
from pcp.tools.support.command import Parser, run
from pcp.training.observe.past_run import write_report

ROUNDS, KILLED_IN = 20, 8
PATIENCE_S = 1200
PCP = [sys.executable, "-m", "pcp.tools.cli"]
COMPILE = [sys.executable, "-m", "pcp.tools.compile"]
#: Name of a run, and the keys of its experiment that are not the demo's.
RUNS = {"lr-0.7": (), "lr-1.0": ("outer_learning_rate=1.0",)}

#: A Llama so wide that a sum of activations costs less than gathering a weight.
WIDE = f"""\
import sys
sys.path.insert(0, {str(ROOT / "examples" / "models")!r})
import llama_block
class Llama(llama_block.Llama):
    def __init__(self, block_size):
        super().__init__(block_size, vocabulary=1024, width=512)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run("pcp.tools.pages.screenshots", _main, argv)


def _main(argv: Sequence[str]) -> None:
    parser = Parser.documented("pcp.tools.pages.screenshots", __doc__)
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR")
    flags = parser.parse_args(argv)
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise MissingPackage("pictures of pages need the browser chromium")
    flags.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made:
        folder = Path(made)
        for name, page, height in _pages(folder):
            _photograph(browser, page, flags.out / f"{name}.png", height)


def _pages(folder: Path) -> list[tuple[str, Path, int]]:
    """Name, file and height in pixels of each page."""
    _call(*PCP, "init", "demo", within=folder)
    for i, (name, keys) in enumerate(RUNS.items()):
        _train(folder, name, keys, kill=i == 0)
    _call(
        *PCP, "compare", *(f"runs/{n}" for n in RUNS), "-o", "runs.html", within=folder
    )
    compiled = ("--target", "cpu", "--mode", "grad", "--mesh", "dp=2,tp=2")
    sharding = ("--sharding", str(ROOT / "examples" / "megatron.json"))
    (folder / "wide.py").write_text(WIDE)
    sizes = ("--batch-size", "8", "--block-size", "16", "-o", "llama.mlir")
    _call(*PCP, "export", "--torch", "wide.py:Llama", *sizes, within=folder)
    model = ("llama.mlir", *compiled, *sharding, "-o", "llama.pcp")
    _call(*COMPILE, *model, within=folder)
    _call(*PCP, "inspect", "--plan", "llama.pcp", "-o", "plan.html", within=folder)
    return [
        ("run", write_report(folder / "runs" / next(iter(RUNS)), programs), 925),
        ("runs", folder / "runs.html", 960),
        ("plan", folder / "plan.html", 1180),
    ]


def _call(*words: str, within: Path) -> None:
    subprocess.run(words, cwd=within, check=True, timeout=PATIENCE_S)


def _train(folder: Path, name: str, keys: Sequence[str], *, kill: bool) -> None:
    where = folder / "runs" / name
    command = [*PCP, "train", "demo/demo.json", "--workers", "3", "--run", str(where)]
    for key in (f"outer_loop_steps={ROUNDS}", *keys):
        command += ["--set", key]
    with subprocess.Popen(command, cwd=folder) as trainer:
        if kill:
            _kill_a_worker(trainer, where / "metrics.jsonl")
        if trainer.wait(PATIENCE_S):
            raise PcpError(f"the run {name} ended with {trainer.returncode}")


def _kill_a_worker(trainer: subprocess.Popen[bytes], metrics: Path) -> None:
    """The last of its workers, once enough rounds are committed."""
    until = time.monotonic() + PATIENCE_S
    while trainer.poll() is None and time.monotonic() < until:
        rounds = metrics.read_text().splitlines() if metrics.exists() else []
        if any(strict_json.parse(line).get("round", 0) >= KILLED_IN for line in rounds):
            os.kill(_workers(trainer.pid)[-1], signal.SIGKILL)
            return
        time.sleep(0.1)


def _workers(pid: int) -> list[int]:
    """The processes below one that are workers, in the order of their numbers."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    below = [child for each in threads for child in each.read_text().split()]
    found = [w for child in below for w in _workers(int(child))]
    for child in below:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"worker" in words:
            found.append(int(child))
    return sorted(found)


def _photograph(browser: str, page: Path, out: Path, height: int) -> None:
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += ["--virtual-time-budget=4000", f"--window-size=1120,{height}"]
    command = [browser, *words, f"--screenshot={out}", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
