"""A run that ends by its held-out loss, the checkpoint of its best round, callbacks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import ConfigError
from pcp.tools.cli import main
from pcp.training.config import experiment_file as experiments
from pcp.training.coordinator import monitor
from pcp.training.storage import checkpoint, ledger

WIDTH = 4
ROUNDS, PATIENCE = 12, 3
BASE = {"model_path": "m", "data_path": "d", "learning_rate": 0.1, "tau": 1}
BASE |= {"outer_loop_steps": 9}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Descent on a quadratic that then overshoots: the loss falls, and then grows.

    Held-out rows lie elsewhere, so the best held-out loss comes early.
    """
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(0)
    x = random.normal(size=(256, WIDTH)).astype(np.float32)
    y = x.sum(1)
    y[192:] = 0.3 * x[192:].sum(1)  # w = 0.3 is best there, w = 1 elsewhere
    np.savez(folder / "rows.npz", x=x, y=y)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((x @ w - y) ** 2).mean()

    module = pcp.from_jax(loss, np.zeros(WIDTH, np.float32), x[:4], y[:4])
    (folder / "m.mlir").write_text(str(module))
    np.savez(folder / "w.npz", w=np.zeros(WIDTH, np.float32))
    return {
        "model_path": str(folder / "m.mlir"),
        "data_path": str(folder / "rows.npz"),
        "validation_fraction": 0.25,
        "validate_every": 1,
        "outer_loop_steps": ROUNDS,
        "tau": 1,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "algorithm": "average",
        "sampling": "fifo",
        "stop_after": PATIENCE,
        "keep_best": True,
        "keep_checkpoints": 1,
        "checkpoint_every": 100,
    }


class Heard(pcp.Callbacks):
    """All that callbacks hear, in order."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.losses: dict[int, float] = {}
        self.saved: dict[int, Path] = {}

    def on_round(self, record: Any) -> None:
        self.rounds.append(record.round)

    def on_validate(self, round: int, loss: float) -> None:
        assert round == self.rounds[-1]  # no round begins before it is known
        self.losses[round] = loss

    def on_checkpoint(self, round: int, path: Path) -> None:
        assert checkpoint.load(path).round == round
        self.saved[round] = path


@pytest.mark.slow  # it waits for rounds
def test_a_run_ends_when_nothing_gets_better(
    said: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    heard, where = Heard(), tmp_path / "run"
    made = pcp.train(said, workers=2, callbacks=[heard], run=where)
    losses = heard.losses
    best = min(losses, key=losses.__getitem__)
    assert 1 < best < ROUNDS - PATIENCE
    assert heard.rounds == [*range(1, best + PATIENCE + 1)] == [*losses]
    assert made.outcome.best == (best, losses[best])
    assert made.best == where / "checkpoints" / f"round_{best:08d}"
    assert best in heard.saved
    kept = [checkpoint.round_of(f) for f in checkpoint.folders(where)]
    assert kept == [best + PATIENCE, best]  # the newest, and the best
    said_ = capsys.readouterr().out
    line = f"no better validation loss since round {best} ({losses[best]:.4f})"
    assert f"{line}: the run ends after round {best + PATIENCE} of {ROUNDS}" in said_
    assert f"best round      {best}, validation loss {losses[best]:.4f}" in said_

    # The weights of the best round have the loss that was told.
    held = np.load(said["data_path"])
    w = checkpoint.load(heard.saved[best]).parameters["w"]
    wanted = ((held["x"][192:] @ w - held["y"][192:]) ** 2).mean()
    assert losses[best] == pytest.approx(float(wanted), rel=1e-5)

    # The scores are in the ledger: a replay passes, a resumed run stops there too.
    records, _ = ledger.read(where / "ledger.jsonl")
    assert {r["round"]: r["loss"] for r in records if r["kind"] == "score"} == losses
    assert main(["ledger", "check", str(where)]) == 0
    assert main(["ledger", "replay", str(where)]) == 0
    again = Heard()
    ended = pcp.train(said, workers=2, callbacks=[again], run=where, resume=True)
    assert (again.rounds, ended.outcome.rounds) == ([], best + PATIENCE)
    more = said | {"stop_after": PATIENCE + 1}
    (tmp_path / "x.json").write_text(json.dumps(more))
    flags = ["--workers", "2", "--run", str(where), "--resume"]
    assert main(["train", str(tmp_path / "x.json"), *flags]) == 0
    scores = [r for r in ledger.read(where / "ledger.jsonl")[0] if r["kind"] == "score"]
    assert [r["round"] for r in scores] == [*range(1, best + PATIENCE + 2)]


@pytest.mark.parametrize(
    ("losses", "least", "best", "stale"),
    [
        ([], 0.0, None, 0),
        ([3.0, 2.0, 2.0, 2.5], 0.0, 2, 2),
        ([3.0, 2.9, 2.8, 2.0], 0.15, 4, 0),
        ([3.0, 2.9, 2.8], 0.15, 3, 0),
        ([3.0, 2.9], 0.15, 1, 1),
        ([float("nan"), 1.0, float("nan")], 0.0, 2, 1),
        ([float("nan"), float("inf")], 0.0, None, 2),
    ],
)
def test_what_scores_say(
    losses: list[float], least: float, best: int | None, stale: int
) -> None:
    base = BASE | {"validate_every": 1}
    told = experiments.parse(base | {"stop_after": 2, "least_improvement": least})
    scores = dict(enumerate(losses, 1))
    assert monitor.best(told, scores) == best
    assert monitor.stale(told, scores) == stale
    assert monitor.stops(told, scores) == (stale >= 2)
    assert monitor.decides(told, scores) == (stale >= 1)


@pytest.mark.parametrize("key", ["stop_after", "keep_best"])
def test_without_validations_nothing_can_be_compared(key: str) -> None:
    base = BASE | {key: 1 if key == "stop_after" else True}
    with pytest.raises(ConfigError, match=f"{key} needs validate_every"):
        experiments.parse(base)
