"""A model that no device may hold alone: refused whole, trained by islands."""

import json
from pathlib import Path

import pytest
from helpers.servers.processes import Processes
from helpers.worlds.training_runs import Background, Watcher, checkpoint_of, experiment

import pcp
from pcp.errors import PassError
from pcp.tools.support import training_job as jobs
from pcp.training.config.experiment import Experiment
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.ledger import check
from pcp.training.storage.run_folder import RunFolder

torch = pytest.importorskip("torch")

VOCABULARY, WIDTH, BATCH, BLOCK = 64, 512, 4, 8
DEVICES = "ab"
RANK = "helpers.worlds.island_rank"


class Wide(torch.nn.Module):
    """Embedding, two tanh layers, head: nearly all that is held are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, targets):
        hidden = self.down(torch.tanh(self.up(self.embedding(ids))))
        flat = self.head(hidden).reshape(-1, VOCABULARY)
        return torch.nn.functional.cross_entropy(flat, targets.reshape(-1))


PARAMETERS = 4 * (2 * VOCABULARY * WIDTH + 4 * WIDTH**2 + 3 * WIDTH + VOCABULARY)
"""Bytes."""


def asked_for(folder: Path, share: float, **keys: object) -> Experiment:
    """A model on two devices that hold `share` of it, AdamW's state and gradients."""
    ids = torch.zeros((BATCH, BLOCK), dtype=torch.int64)
    path = folder / "wide.mlir"
    path.write_text(str(pcp.from_torch(Wide(), ids, ids)))
    rates = {"host": "x", "throughput": {"f32": 5e10}, "membw": 1e10}
    room = {"memory": int(share * 4 * PARAMETERS)}
    link = {"bandwidth": 1e9, "latency_ns": 50000}
    pairs = [[a, b] for a in DEVICES for b in DEVICES if a < b]
    content = {
        "devices": {n: rates | room | {"ordinal": i} for i, n in enumerate(DEVICES)},
        "links": [link | {"ends": pair} for pair in pairs],
    }
    cluster = folder / "cluster.json"
    cluster.write_text(json.dumps(content))
    return experiment(
        folder, model_path=str(path), cluster=str(cluster), algorithm="diloco", **keys
    )


@pytest.mark.slow  # a search of seconds
def test_an_island_is_planned_for_the_memory_of_the_smallest_device(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    planned = jobs.planned(asked_for(tmp_path, 1.2), lines.append)
    assert (planned.ranks, planned.workers) == (2, 1)
    assert lines[0].startswith("planned for 2 devices: 1 islands of ")


def test_it_is_refused_whole(tmp_path: Path) -> None:
    says = r"nothing fits: the least memory is that of .* on @a, which has"
    with pytest.raises(PassError, match=says):
        jobs.planned(asked_for(tmp_path, 1.2, mesh="tp=1"))


@pytest.mark.slow
def test_islands_train_it_in_the_memory_of_the_plan(
    tmp_path: Path, processes: Processes
) -> None:
    """Slow: it compiles for a mesh, and runs four processes."""
    lines: list[str] = []
    asked = asked_for(tmp_path, 1.2, tau=2, outer_loop_steps=3, mesh="tp=2")
    planned, watcher = jobs.planned(asked, lines.append), Watcher()
    run = RunFolder.at(tmp_path / "run", planned)
    compile_for = jobs.compiler_for(planned, lines.append)
    shepherd = Shepherd(planned, run, compile_for, watcher, workers=2)
    thread = Background(shepherd.run)
    crew = [processes.start(RANK, name, shepherd.port) for name in "abcd"]
    checkpoint_of(thread.finish(300))
    check(run.ledger)
    assert [r.workers for r in watcher.rounds] == [2, 2, 2]
    plan = float(lines[0].partition("holding ")[2].partition(" MiB")[0])
    for rank in crew:
        held = float(rank.wait_for("held at most").split()[3])
        assert rank.wait() == 0
        assert held / 2**20 == pytest.approx(plan, rel=0.15)
