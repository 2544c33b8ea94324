"""Ctrl-C and SIGTERM: a run is saved, a compiler ends, what is left is said."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.present import present
from helpers.sampled import sampled
from helpers.servers.processes import Processes
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.tools.support import interrupts
from pcp.tools.support.command import Stopped, run
from pcp.tools.support.signals import at_once, on_signals
from pcp.training.storage import checkpoint as checkpoints


def test_a_signal_saves_and_a_second_one_ends_at_once(tmp_path, monkeypatch, capsys):
    exp = experiment(tmp_path, outer_loop_steps=1000, max_epochs=1000)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    worker = start_worker(shepherd.port, "w", 0.01)
    watcher.wait_for_round(1)
    monkeypatch.setattr(interrupts, "_SAME_SECONDS", 60.0)
    stop = interrupts.saving(shepherd)
    for _ in range(2):  # the same one, from a terminal and from a supervisor
        stop(signal.SIGINT)
    monkeypatch.setattr(interrupts, "_SAME_SECONDS", 0.0)
    time.sleep(0.001)
    with pytest.raises(Stopped):
        stop(signal.SIGINT)
    outcome = thread.finish()
    assert worker.finish(10) == "the run is cancelled by the operator"
    assert outcome.cancelled
    assert checkpoint_of(outcome).round == outcome.rounds < 1000
    assert interrupts.exit_code(shepherd) == 130

    def interrupted(argv):
        with interrupts.told(shepherd.folder):
            raise KeyboardInterrupt

    assert run("x", interrupted, []) == 130
    said = f"checkpoint of round {outcome.rounds} in {outcome.checkpoint}; --resume"
    assert said in capsys.readouterr().err


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), on_signals(at_once):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


_SLOW = """
import pathlib, sys
from pcp.compiler import iree
iree.binary = lambda: pathlib.Path(sys.argv[1])
from pcp.tools.cli import main
sys.exit(main(sys.argv[2:]))
"""


@sampled("command", ["train x.json", "shepherd --config x.json"], 1)
def test_a_terminated_command_leaves_no_compiler_and_no_run(tmp_path, command):
    write_experiment(tmp_path)
    fake = tmp_path / "iree-compile"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    fake.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = [*command.split(), "--port", "0", "--web", "off"]
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(fake), *line],
        cwd=tmp_path,
        env=os.environ | {"PCP_CACHE": "off", "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with Processes() as processes:
        try:
            if "shepherd" in command:
                while "listens on" not in (said := present(child.stdout).readline()):
                    assert said
                port = said.strip().rpartition(":")[2]
                where = ["--connect", f"127.0.0.1:{port}", "--readable", tmp_path]
                processes.start(
                    "pcp.tools.cli", "worker", *where, "--device", "local-sync"
                )
            pid = _pid(tmp_path / "pid")
            child.terminate()
            _, said = child.communicate(timeout=20)
        finally:
            child.kill()
            child.wait()
    assert child.returncode == 128 + signal.SIGTERM
    assert said.endswith("interrupted: the run had not begun, nothing is left of it\n")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(scratch.iterdir())
    assert not list((tmp_path / "runs").iterdir())


def _pid(path) -> int:
    return int(eventually(lambda: path.is_file() and path.read_text(), 30))


def test_ctrl_c_saves_what_the_workers_of_train_hold(tmp_path):
    """A terminal sends it to the whole group of the command."""
    write_experiment(tmp_path, outer_loop_steps=1000, max_epochs=10000)
    child = subprocess.Popen(
        [sys.executable, "-m", "pcp.tools.cli", "train", "x.json", "--workers", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        while "round 3/1000" not in (said := present(child.stdout).readline()):
            assert said
        os.killpg(child.pid, signal.SIGINT)
        said, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, said
    assert "(cancelled; --resume goes on)" in said
    (run_folder,) = (tmp_path / "runs").glob("run_*")
    saved, refused = checkpoints.newest(run_folder)
    number = present(saved).round
    assert number >= 3
    assert not refused
    assert f"rounds          {number} " in said
