"""`pcp train --hf`: from a folder of transformers to one, or to an adapter."""

import json
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

from pcp.tools import compile
from pcp.tools.cli import main
from pcp.tools.support import training_job as jobs
from pcp.training.config.experiment_file import (
    load,
)
from pcp.training.data.corpus import Corpus
from pcp.training.observe import metrics
from pcp.training.storage import checkpoint, safetensors_io

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

BATCH, BLOCK = 2, 8
SIZE = ["--batch-size", str(BATCH), "--block-size", str(BLOCK)]
KEYS = {
    "data_path": "text.bin",
    "tokenizer": "byte",
    "optimizer": "sgd",
    "algorithm": "ddp",
    "learning_rate": 0.1,
    "tau": 2,
    "outer_loop_steps": 2,
    "checkpoint_every": 2,
    "max_epochs": 100,
    "validation_fraction": 0.1,
}


def prepare(folder: Path, config: dict[str, Any], **keys: Any) -> Any:
    """A folder `gpt2` with its weights, text, and an experiment without a model."""
    torch.manual_seed(0)
    config = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} | config
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))
    model.save_pretrained(folder / "gpt2")
    text = np.random.default_rng(0).integers(32, 127, 4000, np.uint8)
    (folder / "text.bin").write_bytes(text.tobytes())
    (folder / "x.json").write_text(json.dumps(KEYS | keys))
    return model


SMALL = {"vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8}


def train(*flags: str, workers: int = 1) -> Path:
    given = ["x.json", "--hf", "gpt2", *SIZE, "--workers", str(workers)]
    assert main(["train", *given, "--run", "out", *flags]) == 0
    return Path("out")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def adapted(model: Any, run: Path) -> Any:
    """The model with the run's adapter, by peft."""
    peft = pytest.importorskip("peft")
    with (
        catch_warnings()
    ):  # of names in transformers, and of GPT-2's transposed weights
        simplefilter("ignore")
        return peft.PeftModel.from_pretrained(model, run / "adapter")


def first_loss(model: Any, run: Path) -> float:
    """Of the first step, by the model itself on the batch that the run drew."""
    from pcp.compiler.signature import data_inputs
    from pcp.dialect.context import read

    experiment = load(run / "experiment.json")
    corpus = Corpus(experiment, data_inputs(read(experiment.model_path), "main"))
    batch = corpus.read(np.arange(BATCH)).tensors
    with torch.no_grad():
        given = {name: torch.from_numpy(x).long() for name, x in batch.items()}
        return model(**given).loss.item()


def test_a_folder_is_trained_into_a_folder(here: Path) -> None:
    model = prepare(here, SMALL)
    run = train()
    rounds, _ = metrics.read(run / "metrics.jsonl")
    assert rounds[0].loss_first == pytest.approx(first_loss(model, run), rel=1e-5)
    trained = transformers.GPT2LMHeadModel.from_pretrained(run / "model")
    saved = checkpoint.load(run / "checkpoints" / "round_00000002").parameters
    for name, p in trained.named_parameters():
        np.testing.assert_array_equal(p.detach().numpy(), saved[name], err_msg=name)
    pairs = zip(trained.parameters(), model.parameters(), strict=True)
    assert all((p != q).any() for p, q in pairs)
    # The same folder and size is exported once; a run that is complete stays so.
    (made,) = Path("runs/models").iterdir()
    before = (made / "model.mlir").stat().st_mtime_ns
    train("--resume")
    assert (made / "model.mlir").stat().st_mtime_ns == before


LORA = {"lora": "r=4,alpha=8,targets=*.c_attn.weight", "learning_rate": 1.0}


@pytest.mark.slow  # a folder is trained above
@pytest.mark.parametrize("more", ["", ",dora=true"])
def test_an_adapter_is_trained_and_peft_reads_it(here: Path, more: str) -> None:
    model = prepare(here, SMALL, **LORA | {"lora": LORA["lora"] + more})
    run = train()
    rounds, _ = metrics.read(run / "metrics.jsonl")
    assert rounds[0].loss_first == pytest.approx(first_loss(model, run), rel=1e-5)
    saved = checkpoint.load(run / "checkpoints" / "round_00000002").parameters
    assert all("lora_" in name for name in saved)
    assert any("magnitude" in name for name in saved) == bool(more)
    loaded = adapted(model, run)
    named = dict(loaded.named_parameters())
    for name, array in saved.items():
        full = f"base_model.model.{name.removesuffix('.weight')}.default.weight"
        np.testing.assert_array_equal(named[full].detach().numpy(), array)
    assert main(["ledger", "check", str(run)]) == 0
    assert main(["ledger", "replay", str(run)]) == 0
    # A run that begins with what another left trains its magnitudes on.
    values = {n: np.array(a) for n, a in saved.items()}
    Path("start.safetensors").write_bytes(safetensors_io.to_bytes(values))
    keys = json.loads(Path("x.json").read_text())
    again = keys | {"initial_weights": "start.safetensors"}
    Path("x.json").write_text(json.dumps(again))
    assert main([*"train x.json --hf gpt2 --workers 1 --run next".split(), *SIZE]) == 0
    rounds, _ = metrics.read(Path("next") / "metrics.jsonl")
    assert rounds[0].loss_first == pytest.approx(first_loss(loaded, run), rel=1e-5)


@pytest.mark.slow  # two runs of a small model
def test_an_island_trains_magnitudes_as_one_process_does(here: Path) -> None:
    """Cut with the outputs of their matrices, which are cut too."""
    prepare(here, SMALL, **LORA | {"lora": LORA["lora"] + ",dora=true"})
    cut = {"weight": [[], ["tp"]], "lora_magnitude_vector": [["tp"]]}
    tensors = {f"*.c_attn.{name}": dims for name, dims in cut.items()}
    Path("cut.json").write_text(json.dumps({"tensors": tensors}))
    keys = json.loads(Path("x.json").read_text())
    Path("y.json").write_text(json.dumps(keys | {"sharding": "cut.json"}))
    saved = {}
    for name, flags in (("x", "--workers 1"), ("y", "--islands 1 --mesh tp=2")):
        line = f"train {name}.json --hf gpt2 --run {name} {flags}"
        assert main([*line.split(), *SIZE]) == 0
        saved[name] = checkpoint.load(f"{name}/checkpoints/round_00000002").parameters
    noted = json.loads(Path("y/checkpoints/round_00000002/state.json").read_text())
    assert any("magnitude" in name for _, name, *_ in noted["parts"]["cut"])
    for name, array in saved["x"].items():
        np.testing.assert_allclose(saved["y"][name], array, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_adapter_of_a_gpt2_of_124_million_is_small(here: Path) -> None:
    """Of two workers: what is frozen is in no checkpoint and in no adapter."""
    lora = {"lora": "r=8,alpha=16,targets=*.c_attn.weight", "tau": 1}
    model = prepare(here, {}, **lora)
    run = train(workers=2)
    parameters = sum(p.numel() for p in model.parameters())
    saved = checkpoint.load(run / "checkpoints" / "round_00000002")
    trained = sum(a.size for a in saved.parameters.values())
    assert trained < parameters / 100
    (adapter,) = (run / "adapter").glob("*.safetensors")
    assert adapter.stat().st_size < 3e6
    experiment = load(run / "experiment.json")
    assert len(jobs.compiler_for(experiment, print)("cpu:host")) < 5e6
    assert adapted(model, run)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch-size", "2"], "--batch-size goes with --hf"),
        (["--hf", "gpt2", "--model", "m.mlir"], "--hf or --model"),
        (["--hf", "gpt2", "--batch-size", "0"], "at least one"),
        (["--hf", "nowhere"], "no file"),
    ],
)
def test_flags_that_do_not_agree(
    flags: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "x.json").write_text(json.dumps(KEYS))
    (here / "text.bin").write_bytes(b"text")
    assert main(["train", "x.json", *flags]) != 0
    assert words in capsys.readouterr().err


def test_a_folder_is_compiled_as_it_is(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pcp-compile --hf` is given the program that `pcp train --hf` exports."""
    prepare(here, SMALL)
    line = ["--hf", "gpt2", *SIZE, "--target", "cpu", "--mode", "grad", "-q"]
    assert compile.main([*line, "--emit", "mlir"]) == 0
    text = Path("gpt2.cpu.mlir").read_text()
    assert f"tensor<{BATCH}x{BLOCK}xi64>" in text
    capsys.readouterr()
    for wrong, said in (
        (["--target", "cpu"], "say what to compile: MODEL.mlir, or --hf DIR"),
        (["x.mlir", *line], "give one model: --hf or --model"),
        (["x.mlir", "--target", "cpu", "--task", "a"], "--task goes with --hf"),
    ):
        assert compile.main(wrong) == 2
        assert said in capsys.readouterr().err
