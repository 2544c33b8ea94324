"""`pcp train` and `pcp run` where the loss becomes NaN: real workers, through IREE."""

import json
import math
import signal
import urllib.request

import numpy as np
import pytest
from helpers.models.bigram_stablehlo import MODEL, write_experiment
from helpers.servers.processes import Processes

from pcp.tools.cli import main
from pcp.training.observe import metrics
from pcp.training.storage.ledger import check
from pcp.training.storage.run_folder import WORKER_LOG

# AdamW's first step is the learning rate: the second loss is inf - inf.
KEYS = {"learning_rate": 3e38, "tau": 3, "max_epochs": 1000, "validate_every": 2}


def strictly(text):
    """What a parser reads that keeps to RFC 8259."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _shown(page):
    with urllib.request.urlopen(f"{page}api/run", timeout=30) as answer:
        return strictly(answer.read().decode())


@pytest.mark.slow  # in one process in test_values.py
def test_a_run_pauses_and_says_who(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, **KEYS, outer_loop_steps=100_000)
    with Processes() as started:
        line = "train x.json --workers 2 --run out --no-dashboard"
        run = started.start("pcp.tools.cli", *line.split())
        said = run.wait_for("is left out of round 1: loss is nan at step 2", 120)
        assert "worker" in said
        run.wait_for("the run is paused, and holds round 0", 60)
        assert main(["status", "--run", "out", "--json"]) == 0
        assert strictly(capsys.readouterr().out)["paused"]
        run.signal(signal.SIGINT)
        assert run.wait(60) == 128 + signal.SIGINT, run.text
    folder = tmp_path / "out"
    log = (folder / WORKER_LOG).read_text()
    assert log.count("started for") == 2, log
    assert check(folder / "ledger.jsonl").rounds == 0


def _is_whole(folder):
    for name in ("metrics.jsonl", "ledger.jsonl"):
        for line in (folder / name).read_text().splitlines():
            strictly(line)
    for state in folder.glob("checkpoints/*/state.json"):
        assert "parameters.arg0" in strictly(state.read_text())["nonfinite"]
    rounds, validations = metrics.read(folder / "metrics.jsonl")
    assert all(math.isnan(record.loss) for record in rounds)
    assert [m.nonfinite_step for m in rounds[0].members] == [2, 2]
    assert all(map(math.isnan, validations.values()))


def test_steps_say_the_first_bad_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text(MODEL)
    line = "pcp-compile m.mlir --target cpu:host -o m.pcp -q --optimizer adamw{lr=3e38}"
    from pcp.tools import compile as compiler

    assert compiler.main(line.split()[1:]) == 0
    draw = np.random.default_rng(0)
    ids, targets = draw.integers(0, 64, (2, 4, 8))
    np.savez("in.npz", arg1=ids, arg2=targets)
    run = "run m.pcp --steps 3 --inputs in.npz --out out.npz"
    assert main(run.split()) == 0
    said = capsys.readouterr().out
    assert "loss is nan at step 2, the first that is not finite" in said
    losses = np.load("out.npz")["losses"]
    assert [bool(x) for x in np.isfinite(losses)] == [True, False, False]
