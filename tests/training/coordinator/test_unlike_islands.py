"""Islands of unlike shape, two devices with tp and one alone, with real programs."""

import json
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.cases.tiny_torch import BATCH, BLOCK, RULES, Tiny
from helpers.models.token_batches import pair
from helpers.servers.processes import Processes
from helpers.worlds.communicators import eventually
from helpers.worlds.island_rank import POINTS, RING
from helpers.worlds.training_cluster import crew_member, load_bundle
from helpers.worlds.training_runs import Background, Watcher, checkpoint_of, experiment

import pcp
from pcp.tools.support import training_job as jobs
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.observe import metrics
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.ledger import check, read
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import snapshot_of

torch = pytest.importorskip("torch")

MESHES = ["tp=2", "tp=1"]
INPUTS = token_inputs(BATCH, BLOCK)
RATE = 0.5
AVERAGE = "diloco{lr=1.0,momentum=0.0}"
LONG = {"outer_loop_steps": 4000, "max_epochs": 4000, "learning_rate": 0.01}
PCP = str(Path(sys.executable).parent / "pcp")
RANK = "helpers.worlds.island_rank"


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


class Run:
    """A shepherd in a thread, for an island of each mesh."""

    def __init__(self, folder: Path, model: Tiny, meshes: list[str], **keys) -> None:
        self.exp, compile_for = asked(folder, model, meshes, **keys)
        self.run, self.watcher = RunFolder.at(folder / "run", self.exp), Watcher()
        self.shepherd = Shepherd(self.exp, self.run, compile_for, self.watcher)
        self.thread = Background(self.shepherd.run)

    def finish(self) -> Checkpoint:
        """The last checkpoint: its digest was compared with the ledger's."""
        saved = checkpoint_of(self.thread.finish(240))
        check(self.run.ledger)
        return saved

    def shapes(self) -> list[int]:
        """The ranks of each island that is there."""
        rows = self.shepherd.status()["workers"]
        return sorted(len(row["ranks"]) for row in rows)


def trained(folder: Path, model: Tiny, meshes: list[str], count: int = 3, **keys):
    """A complete run of an island of each mesh, its ranks in threads."""
    run = Run(folder, model, meshes, **keys)
    port = run.shepherd.port
    crew = [Background(partial(crew_member, f"w{i}", port)) for i in range(count)]
    saved = run.finish()
    assert [each.finish(30) for each in crew] == ["the run is complete"] * count
    return run.exp, run.watcher, saved


@pytest.fixture(scope="module")
def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


@pytest.mark.slow  # test_island_runs.py has alike ones
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


@pytest.mark.slow
def test_an_island_that_lost_a_device_goes_on_with_the_plan_for_one(
    tmp_path: Path, model: Tiny, processes: Processes
) -> None:
    """Slow: it waits for the lost rank in vain. With a spare device it grows again."""
    run = Run(tmp_path, model, MESHES, **LONG)
    port, watcher = run.shepherd.port, run.watcher
    crew = [processes.start(RANK, "a", port)]
    eventually(lambda: run.shapes() == [1], 240)
    crew.append(processes.start(RANK, "b", port))
    doomed = processes.start(RANK, "c", port)
    for shapes in ([1, 2], [1, 1]):
        eventually(lambda shapes=shapes: run.shapes() == shapes, 240)
        eventually(lambda: watcher.rounds and watcher.rounds[-1].workers == 2, 240)
        watcher.wait_for_round(watcher.rounds[-1].round + 4)
        doomed.kill()  # the second time it is gone already
    crew.append(processes.start(RANK, "d", port))
    eventually(lambda: run.shapes() == [1, 2], 240)
    eventually(lambda: watcher.rounds[-1].workers == 2, 240)
    watcher.wait_for_round(watcher.rounds[-1].round + 4)
    run.shepherd.interrupt(15)
    run.finish()
    for rank in crew:
        assert rank.wait() == 0
    taken = [r for r in read(run.run.ledger)[0] if r["kind"] == "joined"]
    assert [r["target"] for r in taken][-2:] == ["cpu tp=1", "cpu tp=2"]
    assert [r.round for r in watcher.rounds] == [*range(1, len(watcher.rounds) + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("point", [RING, *POINTS])
def test_a_rank_that_is_killed_takes_its_island_out_and_it_comes_back(
    tmp_path: Path, model: Tiny, processes: Processes, point: str
) -> None:
    """Slow: five processes, two programs. The whole device dies between its rings, a
    rank of two everywhere else; a commit says that all shapes have the same state."""
    run = Run(tmp_path, model, MESHES, **LONG)
    port, watcher = run.shepherd.port, run.watcher
    struck = (point, 4)
    crew = [processes.start(RANK, "a", port, *(struck if point == RING else ()))]
    eventually(lambda: run.shapes() == [1], 240)
    crew.append(processes.start(RANK, "b", port))
    crew.append(processes.start(RANK, "c", port, *(struck if point != RING else ())))
    doomed = crew.pop(0 if point == RING else -1)
    eventually(lambda: watcher.rounds, 240)
    assert doomed.wait() == -9
    watcher.wait_for_round(watcher.rounds[-1].round + 2)
    alone = [r.round for r in watcher.rounds if r.workers == 1]
    assert alone
    assert alone[0] <= 5
    crew.append(processes.start(RANK, "d", port))
    eventually(lambda: run.shapes() == [1, 2], 240)
    eventually(lambda: watcher.rounds[-1].workers == 2, 60)
    watcher.wait_for_round(watcher.rounds[-1].round + 2)
    run.shepherd.interrupt(15)
    run.finish()
    for rank in crew:
        assert rank.wait() == 0
    assert [r.round for r in watcher.rounds] == [*range(1, len(watcher.rounds) + 1)]


@pytest.mark.slow
def test_a_checkpoint_goes_on_over_islands_of_other_shapes(
    tmp_path: Path, model: Tiny
) -> None:
    """Slow: four programs. Unlike, alike, whole, unlike again: the validation loss of
    a state is that of any shape, and the ledger says that no sample is used twice."""
    asked(tmp_path, model, MESHES)  # for the file of the rules
    rules = str(tmp_path / "rules.json")
    keys = {"tau": 2, "max_epochs": 50, "algorithm": AVERAGE, "optimizer": "sgd"}
    keys["learning_rate"] = RATE
    alike = {"mesh": "tp=2", "workers": 2, "sharding": rules}
    plan = [(MESHES, {}, 3), ([], alike, 4), ([], {"workers": 1}, 1), (MESHES, {}, 3)]
    whole = asked(tmp_path, model, [], **keys)[1]("cpu")
    for k, (meshes, more, count) in enumerate(plan):
        rounds = {"outer_loop_steps": 2 * k + 2}
        said = trained(tmp_path, model, meshes, count, **keys, **more, **rounds)
        exp, watcher, saved = said
        number, loss, _ = watcher.validations[-1]
        assert number == saved.round == 2 * k + 2
        trainer, corpus = load_bundle(whole), Corpus(exp, INPUTS)
        trainer.restore(snapshot_of(saved), 0)
        batches = range(corpus.validation_batches)
        found = np.mean([trainer.evaluate(corpus.validation(i)) for i in batches])
        trainer.close()
        assert loss == pytest.approx(float(found), abs=1e-6)
    records = read(tmp_path / "run" / "ledger.jsonl")[0]
    cut = [(r["round"], r["mesh"]) for r in records if r["kind"] == "recut"]
    assert cut == [(2, "tp=2"), (4, None), (6, "tp=2 and tp=1")]


@pytest.mark.slow
def test_pcp_train_with_unlike_islands_is_that_of_two_whole_replicas(
    tmp_path: Path, model: Tiny
) -> None:
    """Slow: five processes, three programs. DiLoCo, H = 10, AdamW, 20 rounds."""
    found = {}
    for name, meshes in (("unlike", MESHES), ("whole", [])):
        keys = {"tau": 10, "outer_loop_steps": 20, "max_epochs": 50}
        exp, _ = asked(tmp_path, model, [], **keys, learning_rate=0.01)
        file = tmp_path / f"{name}.json"
        said = exp.model_dump(exclude_unset=True)
        said |= {"sharding": str(tmp_path / "rules.json")} if meshes else {}
        file.write_text(json.dumps(said))
        command = [PCP, "train", str(file), "--no-dashboard"]
        command += ["--run", str(tmp_path / name)]
        command += [flag for mesh in meshes for flag in ("--mesh", mesh)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        run = RunFolder(tmp_path / name)
        check(run.ledger)
        folder = checkpoints.folders(run.path)[0]
        rounds = metrics.read(run.metrics)[0]
        found[name] = [r.loss for r in rounds], checkpoints.load(folder)
    (losses, ours), (expected, whole) = found["unlike"], found["whole"]
    assert len(losses) == 20
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert ours.round == whole.round == 20
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(
            ours.parameters[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
    for name, value in whole.outer.items():
        np.testing.assert_allclose(
            ours.outer[name], value, rtol=1e-3, atol=1e-5, err_msg=name
        )
