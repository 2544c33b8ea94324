"""Islands of unlike shape, two devices with tp and one alone, with real programs."""

import json
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.models.tiny_torch import BATCH, BLOCK, RULES, Tiny
from helpers.models.token_batches import pair
from helpers.worlds.training_cluster import crew_member
from helpers.worlds.training_runs import Background, Watcher, checkpoint_of, experiment

import pcp
from pcp.tools.support import training_job as jobs
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import safetensors_io
from pcp.training.storage.ledger import check
from pcp.training.storage.run_folder import RunFolder

torch = pytest.importorskip("torch")

MESHES = ["tp=2", "tp=1"]
INPUTS = token_inputs(BATCH, BLOCK)
RATE = 0.5
AVERAGE = "diloco{lr=1.0,momentum=0.0}"


def asked(folder: Path, model: Tiny, meshes: list[str], **keys):
    """An experiment of islands of these meshes, and what compiles its model."""
    ids = torch.zeros((BATCH, BLOCK), dtype=torch.int64)
    (folder / "tiny.mlir").write_text(str(pcp.from_torch(model, ids, ids)))
    (folder / "rules.json").write_text(json.dumps({"tensors": RULES}))
    keys |= {"sharding": str(folder / "rules.json")} if meshes else {}
    exp = experiment(
        folder,
        model_path=str(folder / "tiny.mlir"),
        islands=[{"mesh": mesh} for mesh in meshes],
        **keys,
    )
    return exp, jobs.compiler_for(exp, lambda line: None)


def trained(folder: Path, model: Tiny, meshes: list[str], **keys):
    """A complete run of an island of each mesh, its ranks in threads."""
    exp, compile_for = asked(folder, model, meshes, **keys)
    run, watcher = RunFolder.at(folder / "run", exp), Watcher()
    shepherd = Shepherd(exp, run, compile_for, watcher)
    thread = Background(shepherd.run)
    count = exp.devices(2)
    crew = [
        Background(partial(crew_member, f"w{i}", shepherd.port)) for i in range(count)
    ]
    saved = checkpoint_of(thread.finish(240))
    check(run.ledger)
    assert [each.finish(30) for each in crew] == ["the run is complete"] * count
    return exp, watcher, saved


@pytest.fixture(scope="module")
def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def test_unlike_islands_averaged_in_every_step_are_synchronous_sgd(
    tmp_path: Path, model: Tiny
) -> None:
    weights = {n: p.detach().numpy() for n, p in model.state_dict().items()}
    start = tmp_path / "start.safetensors"
    start.write_bytes(safetensors_io.to_bytes(weights))
    exp, watcher, saved = trained(
        tmp_path,
        model,
        MESHES,
        tau=1,
        outer_loop_steps=10,
        initial_weights=str(start),
        optimizer="sgd",
        learning_rate=RATE,
        algorithm=AVERAGE,
    )
    copy = deepcopy(model)
    optimizer = torch.optim.SGD(copy.parameters(), lr=RATE)
    corpus, losses = Corpus(exp, INPUTS), []
    for step in range(10):
        samples = np.arange(step * 2 * BATCH, (step + 1) * 2 * BATCH)
        loss = copy(*map(torch.from_numpy, pair(corpus.read(samples))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [r.workers for r in watcher.rounds] == [2] * 10
    assert [r.loss for r in watcher.rounds] == pytest.approx(losses, rel=1e-5)
    for name, value in copy.state_dict().items():
        np.testing.assert_allclose(
            saved.parameters[name], value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )
