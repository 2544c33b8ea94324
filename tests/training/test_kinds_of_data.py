"""`pcp train` on data of every kind: exactly once, and torch's losses."""

import json
import os
import signal

import numpy as np
import pytest
from helpers.servers.processes import Processes

import pcp
from pcp.tools.cli import main
from pcp.training.config.experiment_file import (
    load,
)
from pcp.training.data.corpus import Corpus
from pcp.training.observe import metrics
from pcp.training.storage import safetensors_io
from pcp.training.storage.ledger import read

torch = pytest.importorskip("torch")
from helpers.models.data_kinds import BATCH, KINDS, NEEDS, SAMPLES, Kind  # noqa: E402

RATE, STEPS = 0.1, 4
KEYS = {
    "model_path": "model.mlir",
    "initial_weights": "start.safetensors",
    "optimizer": "sgd",
    "algorithm": "diloco{lr=1.0,momentum=0.0}",
    "learning_rate": RATE,
    "tau": STEPS,
    "max_epochs": 1000,
    "validation_fraction": 0.2,
    "checkpoint_every": 1000,
    "seed": 3,
}
FAST: set[str] = set()  # tests/training/data has each kind


def _kinds(fast: set[str]) -> list:
    return [pytest.param(n, marks=[pytest.mark.slow][n in fast :]) for n in KINDS]


@pytest.fixture(params=_kinds(FAST))
def kind(request, tmp_path, monkeypatch) -> Kind:
    """Model, weights and data of a kind in the working directory."""
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])
    monkeypatch.chdir(tmp_path)
    return KINDS[request.param]


def _prepare(kind: Kind, folder, **keys):
    """Write all that a run needs; the model with its first weights."""
    torch.manual_seed(0)
    model = kind.model()
    module = pcp.from_torch(model, *kind.batch(np.arange(BATCH)))
    (folder / "model.mlir").write_text(str(module))
    weights = {n: p.detach().numpy() for n, p in model.state_dict().items()}
    content = safetensors_io.to_bytes(weights)
    (folder / "start.safetensors").write_bytes(content)
    experiment = KEYS | kind.write(folder) | keys
    (folder / "x.json").write_text(json.dumps(experiment))
    return model


def _positions(run) -> np.ndarray:
    """Those that were used, in the order of the ledger."""
    commits = [x for x in read(run / "ledger.jsonl")[0] if x["kind"] == "commit"]
    leases = [r for x in commits for held in x["consumed"].values() for r in held]
    return np.concatenate([np.arange(a, b) for a, b in leases])


def test_one_workers_losses_are_torchs(kind, tmp_path):
    """On the batches that the ledger names, made from memory by the test."""
    model = _prepare(kind, tmp_path, outer_loop_steps=5)
    assert main(["train", "x.json", "--workers", "1", "--run", "out"]) == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    corpus = Corpus(load("x.json"), _inputs(tmp_path))
    losses = []
    for positions in _positions(tmp_path / "out").reshape(-1, BATCH):
        optimizer.zero_grad()
        loss = model(*kind.batch(corpus.order.indices(positions)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rounds, _ = metrics.read(tmp_path / "out" / "metrics.jsonl")
    wanted = np.reshape(losses, (-1, STEPS))
    found = [[r.loss_first, r.loss] for r in rounds]
    expected = np.stack([wanted[:, 0], wanted.mean(1)], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(set(np.round(losses, 5))) == len(losses) == 20


def _inputs(folder):
    """The data of the model's program."""
    from pcp.compiler.signature import data_inputs
    from pcp.dialect.context import read as read_module

    return data_inputs(read_module(folder / "model.mlir"), "main")


# Slow: who dies, and what is done again, is the same as of text, in test_faults.py.
@pytest.mark.parametrize("kind", _kinds(set()), indirect=True)
def test_two_workers_of_which_one_is_killed_use_each_sample_once(kind, tmp_path):
    _prepare(kind, tmp_path, outer_loop_steps=40, tau=10)
    with Processes() as processes:
        run = processes.start(
            "pcp.tools.cli", *["train", "x.json", "--workers", 2, "--run", "out"]
        )
        run.wait_for("round 3/40", 200)
        log = (tmp_path / "out" / "workers.log").read_text()
        started = [line for line in log.splitlines() if "started for" in line]
        os.kill(int(started[0].split("process ")[1].split()[0]), signal.SIGKILL)
        run.wait_for("killed by SIGKILL")
        assert run.wait(200) == 0, run.text
    assert main(["ledger", "check", "out"]) == 0
    positions = _positions(tmp_path / "out")
    assert len(set(positions.tolist())) == len(positions) > 10 * SAMPLES
    rounds, _ = metrics.read(tmp_path / "out" / "metrics.jsonl")
    assert rounds[-1].loss < rounds[0].loss
