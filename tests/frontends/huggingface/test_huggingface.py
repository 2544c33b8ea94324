"""Folders of transformers: program, weights in, weights out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import ConfigError, UsageError
from pcp.frontends.signature import arguments_of
from pcp.tools.commands.export import main
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from helpers.models.zoo import ZOO, sample  # noqa: E402  they import both

from pcp.frontends.huggingface.exported import export  # noqa: E402
from pcp.frontends.huggingface.skeleton import skeleton, without_weights  # noqa: E402
from pcp.frontends.huggingface.tasks import Size  # noqa: E402
from pcp.frontends.huggingface.weights import read, written  # noqa: E402
from pcp.tools.support.hf_folder import save, write_weights  # noqa: E402


def _saved(name: str, folder: Path, dtype: str = "float32", **options: Any) -> Any:
    """A model of the zoo in a folder, and as it is there."""
    model = sample(name).model
    kind = type(model)(model.config).to(getattr(torch, dtype))
    kind.load_state_dict(model.state_dict())
    kind.save_pretrained(folder, **options)
    return kind.eval()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2, whose two embeddings are tied, in several files of bf16."""
    folder = tmp_path_factory.mktemp("gpt2")
    _saved("gpt2", folder, "bfloat16", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_a_folder_becomes_a_program_and_a_file_of_weights(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, weights = tmp_path / "m.mlir", tmp_path / "w.safetensors"
    asked = ["--batch-size", "2", "--block-size", "8", "-o", str(out)]
    assert main(["--hf", str(gpt2), *asked, "--weights", str(weights)]) == 0
    assert "data: input_ids, labels" in capsys.readouterr().out
    arguments = arguments_of(pcp.load(out))
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2, dtype=torch.float32)
    found = safetensors_io.read(weights)
    parameters = dict(model.named_parameters())
    assert [a.name for a in arguments if a.role == "param"] == [*parameters]
    assert found.keys() == parameters.keys()
    for name, p in parameters.items():
        np.testing.assert_array_equal(found[name], p.detach().numpy(), err_msg=name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("gpt2", "mixtral") else pytest.mark.slow)
        for n in ZOO
        if n != "gpt2-padded"
    ],
)
def test_weights_go_in_and_out_unchanged(name: str, tmp_path: Path) -> None:
    """What is read is the model's own, and transformers reads what is written."""
    model = _saved(name, tmp_path / "a", max_shard_size="20KB")
    made, _ = skeleton(tmp_path / "a")
    assert all(p.is_meta for p in made.parameters())
    names = [n for n, _ in model.named_parameters()]
    found = dict(read(tmp_path / "a", made, names))
    for key, p in model.named_parameters():
        np.testing.assert_array_equal(found[key], p.detach().numpy(), err_msg=key)
    for key, b in model.named_buffers():
        assert torch.equal(made.get_buffer(key), b), key
    save(tmp_path / "a", found, tmp_path / "b")
    again = type(model).from_pretrained(tmp_path / "b").eval()
    given = sample(name).keywords
    with torch.no_grad():
        assert torch.equal(again(**given)["loss"], model(**given)["loss"])


def test_a_checkpoint_becomes_a_folder_for_from_pretrained(
    gpt2: Path, tmp_path: Path
) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2, dtype=torch.float32)
    trained = {n: p.detach().numpy() + 1 for n, p in model.named_parameters()}
    saved = checkpoints.save(tmp_path, Checkpoint(1, trained, {}))
    out = tmp_path / "out"
    assert main(["--hf", str(gpt2), "--checkpoint", str(saved), "-o", str(out)]) == 0
    again = transformers.GPT2LMHeadModel.from_pretrained(out)
    assert again.dtype == torch.float32  # not the bf16 that the folder began with
    for name, p in again.named_parameters():
        np.testing.assert_array_equal(p.detach().numpy(), trained[name], err_msg=name)
    with pytest.raises(ConfigError, match="is not empty"):
        save(gpt2, trained, out)


def test_parameters_without_memory_stay_tied() -> None:
    with without_weights():
        model = transformers.GPT2LMHeadModel(sample("gpt2").model.config)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.is_meta


def test_names_of_files_are_those_of_transformers(tmp_path: Path) -> None:
    """Experts are many tensors in a file, and one parameter."""
    model = _saved("mixtral", tmp_path)
    values = {n: p.detach().numpy() for n, p in model.named_parameters()}
    theirs = safetensors_io.read(tmp_path / "model.safetensors")
    ours = written(model, values)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[k], theirs[k]) for k in theirs)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"n_embd": 48}, ConfigError, r"\] in the files, and \[.* by config\.json"),
        ({"n_layer": 3}, ConfigError, r"the files have no transformer\.h\.2\.ln_1"),
        ({"model_type": "gpt-x"}, ConfigError, "transformers makes no model of it"),
        ({"architectures": ["GPT2Model"]}, UsageError, "says no task; say one: text"),
    ],
)
def test_what_does_not_fit_is_one_line(gpt2, tmp_path, change, error, said) -> None:
    for file in gpt2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((gpt2 / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))

    def all_of_it() -> None:
        made, _ = skeleton(tmp_path)
        list(read(tmp_path, made, [n for n, _ in made.named_parameters()]))

    with pytest.raises(error, match=said) as raised:
        all_of_it()
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_model_or_a_task_that_is_none(gpt2, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: cannot read it"):
        pcp.from_hf(tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'text-generation'"):
        pcp.from_hf(gpt2, "text-generatoin")


@pytest.mark.slow  # a whole model through IREE; lit has the rewrite alone
def test_gpt2_computes_the_same_with_its_layers_in_a_loop(tmp_path: Path) -> None:
    """The positions of its mask are read in the loop, in front of it and behind it."""
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_layer": 4, "n_embd": 16, "n_head": 2, "vocab_size": 61}
    config = transformers.GPT2Config(n_positions=32, **sizes, **dropout)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    made = export(tmp_path, None, Size(1, 16), training=True)
    write_weights(made, tmp_path / "w.safetensors")
    given = safetensors_io.read(tmp_path / "w.safetensors")
    ids = np.random.default_rng(1).integers(0, 61, (1, 16))
    bundle = pcp.compile(
        made.module, targets=["cpu:host"], mode="forward", layers="rolled"
    )
    assert bundle.ir("program").count("stablehlo.while") == 1
    with pcp.Program.load(bundle, device="local-sync") as program:
        specs = program["main"].signature.inputs
        values = [given[t.name] if t.name in given else ids for t in specs]
        loss = program["main"](*values)
    told = torch.from_numpy(ids)
    with torch.no_grad():
        wanted = model(input_ids=told, labels=told).loss.item()
    np.testing.assert_allclose(float(loss), wanted, rtol=1e-6)
