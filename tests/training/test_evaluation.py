"""Validation runs the model as it is evaluated: torch's eval() and JAX's `evaluate`."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.worlds.training_cluster import load_bundle

import pcp
from pcp.errors import IRError, PassError
from pcp.tools.cli import main
from pcp.training.data.dataset import Batch
from pcp.training.storage import checkpoint

torch = pytest.importorskip("torch")
nn = torch.nn

BATCH, WIDTH = 4, 6
POSITIONS = np.arange(BATCH)
METHODS = {"optimizer": "sgd{lr=0.05}", "algorithm": "none"}


class Model(nn.Module):
    """Dropout, batch norm and a branch of the user's: in evaluation none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, 1)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: Any, y: Any) -> Any:
        h = self.drop(torch.relu(self.norm(self.first(x))))
        found = self.second(h)[:, 0]
        if self.training:
            found = found + 0.1 * torch.randn_like(found)
        return ((found - y) ** 2).mean(), found.mean()


def _batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(number)
    x = draw.normal(size=(BATCH, WIDTH)).astype(np.float32)
    return x, x.sum(1)


def _weights(model: Any) -> dict[str, np.ndarray]:
    found = {n: p.detach().numpy() for n, p in model.named_parameters()}
    return found | {n: b.numpy() for n, b in model.named_buffers()}


def _trained(bundle: Any, weights: dict[str, np.ndarray], steps: int) -> Any:
    """A trainer behind so many steps from these weights, and what it holds."""
    trainer = load_bundle(bundle.to_bytes())
    trainer.seed = 1
    names = {p.name for p in bundle.manifest.parameters}
    trainer.restore({f"parameter/{n}": a for n, a in weights.items()}, 0)
    assert names <= set(weights)
    trainer.begin(steps, steps)
    for number in range(steps):
        x, y = _batch(number)
        trainer.step([Batch({"x": x, "y": y}, POSITIONS + BATCH * number)])
    trainer.adopt(trainer.outer(1.0, None))
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"batch": 2 * BATCH}, marks=pytest.mark.slow),
        pytest.param({"precision": "compute=bf16"}, marks=pytest.mark.slow),
    ],
)
def test_the_loss_is_torchs_in_evaluation_mode(options: dict[str, Any]) -> None:
    """With the statistics that training gathered, and nothing dropped."""
    torch.manual_seed(0)
    model = Model()
    module = pcp.from_torch(model, *map(torch.tensor, _batch(0)))
    bundle = pcp.compile(module, ["cpu:host"], mode="train", **METHODS)
    trainer = _trained(bundle, _weights(model), 5)
    held = {k.partition("/")[2]: torch.tensor(a) for k, a in trainer.shared.items()}
    model.load_state_dict(held)
    assert int(model.norm.num_batches_tracked) == 5
    model.eval()
    if options:  # the same state in a program that is made otherwise
        shared = trainer.shared
        trainer.close()
        other = pcp.compile(module, ["cpu:host"], mode="train", **METHODS, **options)
        trainer = load_bundle(other.to_bytes())
        trainer.restore(shared, 0)
        trainer.seed = 1
    x, y = map(np.concatenate, zip(_batch(9), _batch(10), strict=True))
    x, y = x[: trainer.batch], y[: trainer.batch]
    wanted = model(torch.tensor(x), torch.tensor(y))[0].item()
    positions = -1 - np.arange(trainer.batch)
    found = trainer.evaluate(Batch({"x": x, "y": y}, positions))
    trainer.close()
    exact = "precision" not in options
    assert found == pytest.approx(wanted, rel=1e-5 if exact else 1e-2)
    model.train()
    torch.manual_seed(3)
    drawn = model(torch.tensor(x), torch.tensor(y))[0].item()
    assert abs(drawn - wanted) > 1e-3 * wanted  # the mode does show


def test_a_model_that_has_no_modes_has_one_program() -> None:
    """Nor has one in evaluation mode, or that is asked for one program."""
    inputs = [torch.zeros(BATCH, WIDTH), torch.zeros(BATCH)]

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = nn.Linear(WIDTH, 1), nn.Dropout(0.0)

        def forward(self, x: Any, y: Any) -> Any:
            return ((self.drop(self.first(x))[:, 0] - y) ** 2).mean()

    for model, both in [(Plain(), True), (Model().eval(), True), (Model(), False)]:
        module = pcp.from_torch(model, *inputs, evaluation=both)
        assert "pcp.evaluation" not in str(module)
    model = Model()
    module = pcp.from_torch(model, *inputs)
    assert "pcp.evaluation = @evaluation" in str(module)
    assert model.training
    assert model.drop.training
    assert not hasattr(nn.Module, "training")


@pytest.mark.slow  # it compiles twice what no mode but train keeps
def test_only_training_keeps_both() -> None:
    inputs = [torch.zeros(BATCH, WIDTH), torch.zeros(BATCH)]
    module = pcp.from_torch(Model(), *inputs)
    for mode in ("forward", "grad"):
        bundle = pcp.compile(module, ["cpu"], mode=mode)
        assert "evaluation" not in bundle.manifest.functions


def test_a_mode_that_cannot_be_exported_is_said() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            if not self.training and x.sum() > 0:
                return x.sum()
            return (x * self.w).sum()

    with pytest.raises(IRError) as error:
        pcp.from_torch(Odd(), torch.zeros(BATCH, WIDTH))
    assert any("under model.eval()" in note for note in error.value.__notes__)


def _loss(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
    mean = state
    if key is not None:
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)
        mean = 0.5 * state + 0.5 * x.mean(0)
    return (((x - mean) @ params - y) ** 2).mean(), mean


def _evaluate(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
    return _loss(params, state, x, y, None)


ROLES = {"state": [1], "key": 4}


def test_jax_says_what_validation_calls() -> None:
    x, y = _batch(0)
    w, s, key = (
        np.ones(WIDTH, np.float32),
        np.zeros(WIDTH, np.float32),
        np.zeros(2, "u4"),
    )
    module = pcp.from_jax(_loss, w, s, x, y, key, **ROLES, evaluate=_evaluate)
    bundle = pcp.compile(module, ["cpu:host"], mode="train", **METHODS)
    trainer = _trained(bundle, {"params": w}, 3)
    held = trainer.shared
    found = trainer.evaluate(Batch({"x": x, "y": y}, -1 - POSITIONS))
    trainer.close()
    wanted, _ = _evaluate(held["parameter/params"], held["state/state"], x, y, None)
    assert np.abs(held["state/state"]).max() > 0.01
    assert found == pytest.approx(float(wanted), rel=1e-5)


def test_what_evaluates_gives_the_same_results() -> None:
    x, y = _batch(0)
    w, key = np.ones(WIDTH, np.float32), np.zeros(2, "u4")

    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        return ((x @ params - y) ** 2).mean(), {"size": jnp.abs(params).mean()}

    def other(params: Any, x: Any, y: Any, key: Any) -> Any:
        return ((x @ params - y) ** 2).mean(), {"sizes": jnp.abs(params).mean()}

    options = {"key": 3, "has_aux": True, "evaluate": other}
    module = pcp.from_jax(loss, w, x, y, key, **options)
    with pytest.raises(PassError, match=r"gives loss: .*sizes: .*in training .*size: "):
        pcp.compile(module, ["cpu"], mode="train", **METHODS)


@pytest.mark.slow  # a program more
def test_export_of_jax_says_what_arguments_are(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def example_arguments():\n"
        "    return jnp.ones(3), jnp.array([1.0, 2, 3]), jnp.ones(3), "
        "jnp.ones((2, 3)), jax.random.key_data(jax.random.key(0))\n"
        "def loss(w, s, base, x, key):\n"
        "    x = x * jax.random.bernoulli(key, 0.5, x.shape)\n"
        "    return (x @ (w * base)).sum(), (s + x.mean(0), {'n': x.sum()})\n"
        "def valid(w, s, base, x, key):\n"
        "    return (x @ (w * base)).sum(), (s, {'n': x.sum()})\n"
    )
    flags = "--state 1 --frozen 2 --key 4 --has-aux --evaluate valid".split()
    assert main(["export", "--jax", "m.py:loss", *flags]) == 0
    assert "2 tensors" in capsys.readouterr().out  # base, and s, which no seed makes
    module = pcp.load(tmp_path / "m.mlir")
    bundle = pcp.compile(module, ["cpu"], mode="train", **METHODS)
    roles = [t.role for t in bundle.manifest.functions["eval"].inputs]
    assert roles == ["param", "model_state", "frozen", "data", "key"]
    assert main(["export", "--torch", "m.py:loss", "--key", "1"]) == 2
    assert "--key goes with --jax" in capsys.readouterr().err


@pytest.mark.slow  # test_validation_takes_the_average_of_two_workers starts from some
@pytest.mark.parametrize("algorithm", ["none", "ddp"])
def test_an_average_begins_as_the_weights_that_are_given(algorithm: str) -> None:
    """Not as those that the seed would have made."""
    w, (x, y) = np.full(WIDTH, 3.0, np.float32), _batch(0)
    module = pcp.from_jax(lambda w, x, y: ((x @ w - y) ** 2).mean(), w, x, y)
    options = {"optimizer": "sgd{lr=0.05}", "algorithm": algorithm, "ema": 0.9}
    bundle = pcp.compile(module, ["cpu"], mode="train", **options)
    trainer = load_bundle(bundle.to_bytes())
    trainer.restore({"parameter/w": w}, 0)
    trainer.begin(1, 1)
    held = np.array(trainer.steps.held("model_state")["model_state", "ema.w"])
    trainer.steps.start(0, {"w": w + 1})
    started = np.array(trainer.steps.held("model_state")["model_state", "ema.w"])
    trainer.close()
    np.testing.assert_array_equal(held, w)
    np.testing.assert_array_equal(started, w + 1)


@pytest.mark.slow  # a run of two workers; the loss itself is checked above
@pytest.mark.parametrize("evaluated", ["averages", "parameters"])
def test_validation_takes_the_average_of_two_workers(
    evaluated: str, tmp_path: Path
) -> None:
    """One average of all, after rounds of `average`; the checkpoint's loss by numpy."""
    rows = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, y=rows.sum(1))
    x, y = _batch(0)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((x @ w - y) ** 2).mean()

    module = pcp.from_jax(loss, np.zeros(WIDTH, np.float32), x, y)
    (tmp_path / "m.mlir").write_text(str(module))
    said = {
        "model_path": str(tmp_path / "m.mlir"),
        "data_path": str(tmp_path / "rows.npz"),
        "checkpoint_dir": str(tmp_path / "runs"),
        "validation_fraction": 0.25,
        "validate_every": 1,
        "outer_loop_steps": 3,
        "tau": 2,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "algorithm": "average",
        "sampling": "fifo",
        "ema": 0.9,
        "evaluated": evaluated,
    }
    (tmp_path / "x.json").write_text(json.dumps(said))
    assert main(["train", str(tmp_path / "x.json"), "--workers", "2"]) == 0
    (run,) = (tmp_path / "runs").glob("run_*")
    saved, _ = checkpoint.newest(run)
    own, average = saved.parameters["w"], saved.state["ema.w"]
    assert np.abs(own - average).max() > 0.1 * np.abs(own).max()
    assert not any("ema.w" in worker for worker in saved.workers)
    found = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    weights = average if evaluated == "averages" else own
    wanted = loss(weights, rows[48:], rows[48:].sum(1))
    assert found["validation_loss"] == pytest.approx(float(wanted), rel=1e-5)
