"""Ctrl-C, SIGTERM and SIGHUP at ten moments: each leaves a run that `--resume` ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.present import present

from pcp.training.storage.ledger import check

ROUNDS = 12
#: Seconds after the start, while modules load, data is read and workers come; then
#: behind the line of a round.
MOMENTS = (0.05, 0.4, 0.8, 1.2, "1/", "2/", "3/", "6/", "9/", "11/")
TRAIN = [sys.executable, "-m", "pcp.tools.cli", "train", "x.json", "--workers", "1"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]  # thirty runs, begun and ended


def _interrupted(folder: Path, moment: float | str, what: signal.Signals) -> int:
    """The exit code of a run that gets a signal at a moment."""
    child = subprocess.Popen(
        TRAIN,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        if isinstance(moment, float):
            time.sleep(moment)
        else:
            while f"round {moment}{ROUNDS}" not in present(child.stdout).readline():
                assert child.poll() is None
        child.send_signal(what)
        child.communicate(timeout=250)
        return child.returncode
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_left_goes_on(
    what: signal.Signals, moment: float | str, tmp_path: Path
) -> None:
    write_experiment(tmp_path, outer_loop_steps=ROUNDS, max_epochs=1000)
    code = _interrupted(tmp_path, moment, what)
    # Before Python has its handlers the kernel ends it; a run may end by itself first.
    assert code in (128 + what, -what, 0)
    done = subprocess.run(
        [*TRAIN, "--resume"], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").glob("run_*")
    assert check(run / "ledger.jsonl").rounds == ROUNDS
