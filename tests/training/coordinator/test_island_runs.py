"""Islands of two ranks, with real programs: their numbers, and what a death costs."""

import json
import math
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.cases.tiny_torch import BATCH, BLOCK, RULES, VOCABULARY, Tiny
from helpers.models.token_batches import pair
from helpers.servers.processes import Processes
from helpers.worlds.island_rank import POINTS
from helpers.worlds.training_cluster import crew_member, load_bundle
from helpers.worlds.training_runs import (
    Background,
    Watcher,
    checkpoint_of,
    experiment,
)

import pcp
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.ledger import check, read
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import snapshot_of

torch = pytest.importorskip("torch")

INPUTS = token_inputs(BATCH, BLOCK)
RATE = 0.5
AVERAGE = "diloco{lr=1.0,momentum=0.0}"
SLOW = pytest.mark.slow
RANK = "helpers.worlds.island_rank"


def compiled(
    folder: Path,
    model: Tiny,
    mesh: str | None,
    algorithm: str,
    optimizer: str,
    zero: int = 0,
) -> bytes:
    ids = torch.zeros((BATCH, BLOCK), dtype=torch.int64)
    keys = {}
    if mesh is not None:
        keys["mesh"] = f"workers=elastic,{mesh}"
    if mesh is not None and "tp" in mesh:
        (folder / "rules.json").write_text(json.dumps({"tensors": RULES}))
        rules = str(folder / "rules.json")
        keys["sharding"] = rules
    module = pcp.from_torch(model, ids, ids)
    bundle = pcp.compile(
        module,
        ["cpu"],
        mode="train",
        optimizer=optimizer,
        algorithm=algorithm,
        zero=zero,
        **keys,
    )
    return bundle.to_bytes()


class Run:
    """A shepherd in a thread; `threads` begins workers, of which two are an island."""

    def __init__(
        self, folder: Path, content: bytes, islands: int, mesh: str | None, **keys
    ) -> None:
        self.exp = experiment(folder, mesh=mesh, **keys)
        self.run, self.watcher = RunFolder.at(folder / "run", self.exp), Watcher()
        self.shepherd = Shepherd(
            self.exp, self.run, lambda target: content, self.watcher, workers=islands
        )
        self.thread = Background(self.shepherd.run)

    def threads(self, count: int) -> list[Background]:
        work = [partial(crew_member, f"w{i}", self.shepherd.port) for i in range(count)]
        return [Background(each) for each in work]

    def finish(self) -> Checkpoint:
        """The last checkpoint: every rank's digest was compared with the ledger's."""
        saved = checkpoint_of(self.thread.finish(120))
        check(self.run.ledger)
        return saved


def trained(folder: Path, content: bytes, count: int, mesh: str | None, **keys):
    """A complete run of two islands, or of two whole workers."""
    folder.mkdir(exist_ok=True)
    run = Run(folder, content, 2, mesh, **keys)
    crew = run.threads(count)
    saved = run.finish()
    assert [each.finish(30) for each in crew] == ["the run is complete"] * count
    return run, saved


@pytest.fixture(scope="module")
def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


@pytest.fixture(scope="module")
def wide() -> Tiny:
    """One that two stages share evenly: the head is the second's."""
    torch.manual_seed(0)
    return Tiny(VOCABULARY, 64)


@pytest.fixture(scope="module")
def averaging(model: Tiny, tmp_path_factory) -> bytes:
    """SGD, and DiLoCo as an average."""
    folder = tmp_path_factory.mktemp("averaging")
    return compiled(folder, model, "tp=2", AVERAGE, f"sgd{{lr={RATE}}}")


def test_islands_averaged_in_every_step_are_synchronous_sgd(
    tmp_path: Path, model: Tiny, averaging: bytes
) -> None:
    _is_synchronous_sgd(tmp_path, model, averaging, {"tp": 2})


STAGED = [{"pp": 2}, {"pp": 2, "tp": 2}]


@SLOW  # it compiles; test_run_stages.py runs stages
@pytest.mark.parametrize("axes", STAGED, ids=str)
def test_so_are_islands_of_pipeline_stages(
    tmp_path: Path, wide: Tiny, axes: dict[str, int]
) -> None:
    """A rank holds the tensors of its stage alone."""
    mesh = ",".join(f"{axis}={size}" for axis, size in axes.items())
    content = compiled(tmp_path, wide, mesh, AVERAGE, f"sgd{{lr={RATE}}}")
    _is_synchronous_sgd(tmp_path, wide, content, axes)


@SLOW
def test_so_are_islands_that_share_all_that_they_hold(
    tmp_path: Path, wide: Tiny
) -> None:
    """Slow: it compiles. A rank holds half of each parameter and of the batch."""
    content = compiled(tmp_path, wide, "dp=2", AVERAGE, f"sgd{{lr={RATE}}}", zero=3)
    _is_synchronous_sgd(tmp_path, wide, content, {"dp": 2})


def _is_synchronous_sgd(
    folder: Path, model: Tiny, content: bytes, axes: dict[str, int]
) -> None:
    """Of PyTorch, on batches of both islands; a checkpoint has the whole tensors."""
    weights = {n: p.detach().numpy() for n, p in model.state_dict().items()}
    start = folder / "start.safetensors"
    start.write_bytes(safetensors_io.to_bytes(weights))
    steps = {"tau": 1, "outer_loop_steps": 10, "initial_weights": str(start)}
    mesh = ",".join(f"{axis}={size}" for axis, size in axes.items())
    ranks = 2 * math.prod(axes.values())
    run, saved = trained(folder, content, ranks, mesh, **steps)
    copy = deepcopy(model)
    optimizer = torch.optim.SGD(copy.parameters(), lr=RATE)
    corpus, losses = Corpus(run.exp, INPUTS), []
    norms: list[float] = []
    moved: list[float] = []
    for step in range(10):
        samples = np.arange(step * 2 * BATCH, (step + 1) * 2 * BATCH)
        batch = corpus.read(samples)
        norms += [
            _gradient_norm(copy, corpus.read(half)) for half in np.split(samples, 2)
        ]
        loss = copy(*map(torch.from_numpy, pair(batch)))
        optimizer.zero_grad()
        loss.backward()
        before = [p.detach().clone() for p in copy.parameters()]
        optimizer.step()
        pairs = zip(copy.parameters(), before, strict=True)
        moved.append(_norm(new - old for new, old in pairs))
        losses.append(loss.item())
    assert [r.workers for r in run.watcher.rounds] == [2] * 10
    assert [r.loss for r in run.watcher.rounds] == pytest.approx(losses, rel=1e-5)
    seen = [m for r in run.watcher.rounds for m in r.members]
    assert [m.gradient_norm for m in seen] == pytest.approx(norms, rel=1e-4)
    assert [m.moved for m in seen[::2]] == pytest.approx(moved, rel=1e-4)
    for name, value in copy.state_dict().items():
        found = saved.parameters[name]
        np.testing.assert_allclose(
            found, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )
    assert saved.info["parts"]["axes"] == axes
    assert len(saved.workers) == 2


def _gradient_norm(model: Tiny, batch) -> float:
    loss = model(*map(torch.from_numpy, pair(batch)))
    return _norm(torch.autograd.grad(loss, [*model.parameters()]))


def _norm(tensors) -> float:
    return math.sqrt(sum(float((t.detach() ** 2).sum()) for t in tensors))


KILLED = [p if p == "prepared" else pytest.param(p, marks=SLOW) for p in POINTS]


@pytest.mark.parametrize("point", KILLED)
def test_a_rank_that_is_killed_takes_its_island_out_and_it_comes_back(
    tmp_path: Path, averaging: bytes, processes: Processes, point: str
) -> None:
    run = Run(tmp_path, averaging, 2, "tp=2", outer_loop_steps=400, max_epochs=400)
    port = run.shepherd.port
    crew = [processes.start(RANK, name, port) for name in ("a", "b", "c")]
    doomed = processes.start(RANK, "d", port, point, 4)
    assert doomed.wait() == -9
    watcher = run.watcher
    watcher.wait_for_round(watcher.rounds[-1].round + 2)
    alone = [r.round for r in watcher.rounds if r.workers == 1]
    assert alone
    crew.append(processes.start(RANK, "e", port))
    crew[-1].wait_for("joined with the state of round")
    watcher.wait_for_round(watcher.rounds[-1].round + 3)
    assert watcher.rounds[-1].workers == 2
    inside = [row["ranks"] for row in run.shepherd.status()["workers"]]
    assert [len(ranks) for ranks in inside] == [2, 2]
    run.shepherd.interrupt(15)
    run.finish()
    for rank in crew:
        assert rank.wait() == 0
    assert alone[0] <= 5
    assert [r.round for r in watcher.rounds] == [*range(1, len(watcher.rounds) + 1)]


@SLOW
def test_diloco_of_islands_is_that_of_whole_workers(
    tmp_path: Path, model: Tiny
) -> None:
    algorithm, optimizer = "diloco{lr=0.7,momentum=0.9}", "adamw{lr=0.01}"
    found = {}
    for mesh, count in ((None, 2), ("tp=2", 4)):
        folder = tmp_path / str(count)
        folder.mkdir()
        content = compiled(folder, model, mesh, algorithm, optimizer)
        keys = {"tau": 10, "outer_loop_steps": 20, "max_epochs": 50}
        run, saved = trained(folder, content, count, mesh, **keys)
        found[count] = [r.loss for r in run.watcher.rounds], saved
    losses, whole = found[2]
    ours, spread = found[4]
    np.testing.assert_allclose(ours, losses, rtol=1e-4)
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(
            spread.parameters[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
    for name, value in whole.outer.items():
        assert spread.outer[name].shape == value.shape


@SLOW
def test_a_rank_sends_its_share_of_what_a_whole_worker_sends(tmp_path: Path) -> None:
    """Within 2 %: there is a little around each message.

    The whole is small too: members on one machine add large tensors in shared memory
    another way, and copy half as much.
    """
    sent = {}
    for mesh, count in ((None, 2), ("tp=2", 4)):
        folder = tmp_path / str(count)
        folder.mkdir()
        torch.manual_seed(0)
        large = Tiny(VOCABULARY, 256)
        content = compiled(folder, large, mesh, "diloco", "sgd{lr=0.1}")
        run, _ = trained(folder, content, count, mesh, tau=2, outer_loop_steps=4)
        sent[count] = [r.bytes_sent_per_worker * 2 / count for r in run.watcher.rounds]
    assert sent[4] == pytest.approx([each / 2 for each in sent[2]], rel=0.02)


@SLOW
def test_a_checkpoint_goes_on_over_other_meshes_and_whole(
    tmp_path: Path, wide: Tiny
) -> None:
    """The validation loss of a state is that of any mesh; no sample is used twice."""
    content = {
        mesh: compiled(tmp_path, wide, mesh, AVERAGE, f"sgd{{lr={RATE}}}")
        for mesh in ("tp=2", "pp=2", None)
    }
    keys = {"tau": 2, "max_epochs": 50}
    plan = [(3, "tp=2"), (2, "pp=2"), (1, None), (2, "pp=2"), (2, "tp=2")]
    cut = []
    for k, (islands, mesh) in enumerate(plan):
        keys["outer_loop_steps"] = 2 * k + 2
        run = Run(tmp_path, content[mesh], islands, mesh, **keys)
        crew = run.threads(islands * (1 if mesh is None else 2))
        saved = run.finish()
        assert {each.finish(30) for each in crew} == {"the run is complete"}
        number, loss, _ = run.watcher.validations[-1]
        assert number == saved.round == 2 * k + 2
        assert loss == pytest.approx(_loss_of(content[None], saved, run), abs=1e-6)
        records = read(run.run.ledger)[0]
        cut = [(r["round"], r["mesh"]) for r in records if r["kind"] == "recut"]
    assert cut == [(2 * k, mesh) for k, (_, mesh) in enumerate(plan) if k]


def _loss_of(whole: bytes, saved: Checkpoint, run: Run) -> float:
    """The validation loss of a state, by the program of one device."""
    trainer, corpus = load_bundle(whole), Corpus(run.exp, INPUTS)
    trainer.restore(snapshot_of(saved), 0)
    batches = range(corpus.validation_batches)
    found = np.mean([trainer.evaluate(corpus.validation(i)) for i in batches])
    trainer.close()
    return float(found)
