"""The pictures of pages, `docs/pictures/*.png`: two runs, one whose worker is killed.

python -m pcp.tools.pages.screenshots

It trains for some minutes, and has the browser `chromium` draw what a user sees.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pcp import strict_json
from pcp.errors import MissingPackage, PcpError
from pcp.tools.pages.bundle_page import programs
from pcp.tools.pages.places import PICTURES, ROOT
from pcp.tools.support.command import Parser, run
from pcp.training.observe.past_run import write_report
from pcp.training.storage.control_file import CONTROL_FILE, read_control

T = TypeVar("T")

ROUNDS, KILLED_IN, WORKERS = 20, 8, 3
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
    """One run; with `kill` of workers that nobody starts again."""
    where = folder / "runs" / name
    said = [
        word for key in (f"outer_loop_steps={ROUNDS}", *keys) for word in ("--set", key)
    ]
    demo, size = "demo/demo.json", ("--workers", str(WORKERS), "--run", str(where))
    if not kill:
        _call(*PCP, "train", demo, *size, *said, within=folder)
        return
    with ExitStack() as ends:
        words = ("shepherd", "--config", demo, "--port", "0", *size, *said)
        shepherd = _start(words, folder, ends)
        port = _when(shepherd, lambda: _port(where))
        connect = ("worker", "--connect", f"127.0.0.1:{port}")
        workers = [_start(connect, folder, ends) for _ in range(WORKERS)]
        _when(shepherd, lambda: _rounds(where / "metrics.jsonl") >= KILLED_IN)
        workers[-1].kill()
        if shepherd.wait(PATIENCE_S):
            raise PcpError(f"the run {name} ended with {shepherd.returncode}")


def _start(
    words: Sequence[str], folder: Path, ends: ExitStack
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([*PCP, *words], cwd=folder)
    ends.callback(process.wait, 60)
    ends.callback(process.terminate)
    return process


def _when(running: subprocess.Popen[bytes], what: Callable[[], T]) -> T:
    """The first true value, while the process runs."""
    until = time.monotonic() + PATIENCE_S
    while running.poll() is None and time.monotonic() < until:
        if value := what():
            return value
        time.sleep(0.1)
    raise PcpError(f"the run ended too early, with {running.poll()}")


def _port(run: Path) -> int:
    return read_control(run)["port"] if (run / CONTROL_FILE).exists() else 0


def _rounds(metrics: Path) -> int:
    """The newest round that was committed."""
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return max((strict_json.parse(line).get("round", 0) for line in lines), default=0)


def _photograph(browser: str, page: Path, out: Path, height: int) -> None:
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += ["--virtual-time-budget=4000", f"--window-size=1120,{height}"]
    command = [browser, *words, f"--screenshot={out}", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
