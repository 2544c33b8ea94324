"""Experiment files: every key of old, none unknown, errors that name the key."""

import json

import pytest

from pcp.errors import ConfigError
from pcp.training.config import experiment_file as experiments
from pcp.training.config.experiment import Experiment

OLD = {
    "model_path": "models/nanogpt_small.mlir",
    "data_path": "data/tiny_shakespeare.txt",
    "tokenizer": "char",
    "sampling": "random",
    "dtype": "f32",
    "learning_rate": 0.0006,
    "tau": 50,
    "outer_loop_steps": 100,
    "max_epochs": 10,
    "nesterov_momentum": 0.9,
    "effective_batch_size": 128,
    "wandb_project": "pcp-distributed",
    "wandb_entity": None,
    "wandb_run_name": "my-experiment",
    "wandb_api_key": None,
    "checkpoint_dir": "checkpoints",
    "should_resume": False,
    "chunk_size_mode": "fixed_bytes",
    "chunk_manifest_path": None,
    "chunk_shuffle": True,
    "seed": 0,
}


def test_every_key_of_old_files_is_known():
    experiment = experiments.parse(OLD)
    assert experiment.inner_steps == 5000
    assert experiment.outer_learning_rate == 0.7


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"leraning_rate": 1}, "unknown key 'leraning_rate'. Did you mean 'learning_"),
        ({"tau": 0}, "tau: Input should be greater than 0"),
        ({"extensions": "x.py"}, r"extensions: Input should be a list: \[...\]"),
        ({"tokenizer": "qwen"}, "tokenizer: Input should be 'char', 'byte', 'u16'"),
        ({"learning_rate": "fast"}, "learning_rate: Input should be a valid number"),
        ({"chunk_size_mode": "diloco_slices"}, "needs tokenizer 'u16'"),
        ({"heartbeat_limit_seconds": 0.6}, "at least twice heartbeat_seconds"),
    ],
)
def test_a_bad_key_is_named(change, what):
    with pytest.raises(ConfigError, match=what):
        experiments.parse(OLD | change, source="x.json")


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"x.json: model_path: Field required"):
        experiments.parse({}, source="x.json")


def test_paths_are_found_beside_the_file_then_here(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    (beside / "model.mlir").touch()
    (here / "text").touch()
    file = beside / "x.json"
    keys = OLD | {"model_path": "model.mlir", "data_path": "text"}
    file.write_text(json.dumps(keys))
    experiment = experiments.load(file)
    assert experiment.model_path == str(beside / "model.mlir")
    assert experiment.data_path == str(here / "text")
    assert experiment.checkpoint_dir == str(here / "checkpoints")
    file.write_text(json.dumps(keys | {"data_path": "texd"}))
    with pytest.raises(ConfigError, match="data_path: no file 'texd'"):
        experiments.load(file)
    file.write_text(json.dumps(keys | {"data_path": "builtin:python-docs"}))
    assert experiments.load(file).data_path == "builtin:python-docs"


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_what_is_no_object_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        experiments.load(path)
    with pytest.raises(ConfigError, match="cannot read the experiment"):
        experiments.load(tmp_path / "none.json")


def test_the_schema_describes_every_key():
    schema = json.loads(experiments.json_schema())
    described = {k for k, v in schema["properties"].items() if v.get("description")}
    assert described == set(Experiment.model_fields)
    assert schema["additionalProperties"] is False


def test_a_run_may_be_resumed_with_other_readers_and_another_place_of_a_mask():
    """What decides which samples there are stays; defaults are not noted."""
    assert experiments.parse(OLD).frozen()["data"] == {}
    given = {"separator": 3, "readers": 4, "mask_path": "m", "packing": "windows"}
    frozen = experiments.parse(OLD | {"data": given}).frozen()
    assert frozen["data"] == {"separator": 3}


def test_files_of_data_are_found_beside_the_experiment(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("model.mlir", "rows.py", "mask"):
        (tmp_path / name).touch()
    keys = {"model_path": "model.mlir", "data_path": "rows.py:Rows"}
    data = {"data": {"mask_path": "mask"}}
    (tmp_path / "x.json").write_text(json.dumps(OLD | keys | data))
    experiment = experiments.load(tmp_path / "x.json")
    assert experiment.data_path == f"{tmp_path / 'rows.py'}:Rows"
    assert experiment.data_options.mask_path == str(tmp_path / "mask")
