"""Initial weights: taken by name, or refused."""

import ml_dtypes
import numpy as np
import pytest
from helpers.models.bigram_numpy import BigramTrainer
from helpers.models.bigram_stablehlo import MODEL, VOCABULARY, write_experiment
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    run,
    start_shepherd,
    start_worker,
)

from pcp.errors import ConfigError
from pcp.tools.cli import main
from pcp.training.data.corpus import Corpus
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.snapshots import shared_of


def test_initial_weights_are_where_a_run_starts(tmp_path):
    table = np.full((128, 128), 0.25, np.float32)
    path = tmp_path / "start.safetensors"
    path.write_bytes(safetensors_io.to_bytes({"table": table}))
    exp = experiment(tmp_path, initial_weights=str(path), outer_loop_steps=1)
    _, _, watcher = run(exp)
    assert watcher.rounds[0].loss == pytest.approx(np.log(128), abs=0.3)
    trainer = BigramTrainer()
    trainer.restore({"parameter/table": table}, 0)
    assert (trainer.shared["parameter/table"] == 0.25).all()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ({"tabel": np.ones((128, 128), np.float32)}, r"'table'. Did you mean 'tabel'"),
        ({"table": np.ones((128, 64), np.float32)}, r"is float32 \[128, 64\] in"),
        ({"table": np.ones((128, 128))}, r"is float64 .* the model's is float32"),
    ],
)
def test_initial_weights_of_another_model_are_refused(tmp_path, tensor, said):
    path = tmp_path / "start.safetensors"
    path.write_bytes(safetensors_io.to_bytes(tensor))
    exp = experiment(tmp_path, initial_weights=str(path))
    shepherd, _, thread = start_shepherd(exp)
    start_worker(shepherd.port, "w")
    with pytest.raises(ConfigError, match=f"initial_weights: .*{said}"):
        thread.finish()


def test_a_checkpoints_parameters_are_initial_weights(tmp_path):
    """Exported by name, and imported by another run, which begins with their loss."""
    exp = experiment(tmp_path, outer_loop_steps=5, validate_every=5)
    first, _, _ = run(exp, 1)
    path = f"{first.checkpoint}/parameters.safetensors"
    assert list(safetensors_io.read(path)) == ["table"]
    other = exp.model_copy(update={"initial_weights": path, "outer_loop_steps": 1})
    _, _, watcher = run(other.model_copy(update={"learning_rate": 1e-9}), 1)
    saved = checkpoint_of(first)
    trainer = BigramTrainer()
    trainer.adopt(shared_of(saved))
    corpus = Corpus(exp, trainer.inputs)
    loss = trainer.evaluate(corpus.read(np.arange(trainer.batch)))
    assert watcher.rounds[0].loss_first == pytest.approx(loss, rel=1e-6)


def bf16_bigram(folder):
    """An experiment whose model has its table, and computes, in bf16."""
    path = write_experiment(
        folder, dtype="bf16", learning_rate=1e-3, initial_weights="w.safetensors"
    )
    narrow = MODEL.replace("xf32>", "xbf16>").replace("tensor<f32>", "tensor<bf16>")
    (folder / "model.mlir").write_text(narrow.replace("0xFF800000", "0xFF80"))
    table = np.ones((VOCABULARY, VOCABULARY), ml_dtypes.bfloat16)
    (folder / "w.safetensors").write_bytes(safetensors_io.to_bytes({"arg0": table}))
    return path


@pytest.mark.slow  # 30 steps of a run
def test_a_bf16_model_trains_masters_from_its_own_weights(tmp_path, monkeypatch):
    """`pcp train`: 30 steps of AdamW at 1e-3 from 1.0, where bf16 has steps of 2^-7."""
    monkeypatch.chdir(tmp_path)
    bf16_bigram(tmp_path)
    assert main(["train", "x.json", "--run", "out", "--no-dashboard"]) == 0
    saved = checkpoints.load(checkpoints.folders(tmp_path / "out")[0])
    table = saved.parameters["arg0"]
    assert table.dtype == np.float32
    assert 0.01 < np.abs(table - 1).max() < 0.1
    assert main(["ledger", "replay", "out"]) == 0
    state = saved.workers[0]
    assert {a.dtype for n, a in state.items() if n != "step"} == {np.dtype(np.float32)}


def test_the_dtype_is_the_models(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = bf16_bigram(tmp_path)
    path.write_text(path.read_text().replace('"bf16"', '"f32"'))
    assert main(["train", "x.json", "--no-dashboard"]) == 1
    said = "the experiment says 'f32', the model's parameters are bf16"
    assert said in capsys.readouterr().err
