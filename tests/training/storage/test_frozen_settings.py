"""What a resumed run may change, and who may resume it."""

import json
from contextlib import closing

import pytest
from helpers.models.bigram_numpy import BigramTrainer, bundle
from helpers.worlds.training_runs import (
    Watcher,
    experiment,
    run,
    start_shepherd,
    start_worker,
)

from pcp.errors import ConfigError, StateMismatch
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.simulate.replay import Replay
from pcp.training.storage.ledger import check, read


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tau": 3}, "tau was 4, is 3"),
        ({"optimizer": "sgd{momentum=0.5}"}, "optimizer was 'adamw', is 'sgd'"),
        (
            {"parameter_groups": [{"match": "*", "optimizer": "lion"}]},
            r"parameter_groups was \[\], is \[\['\*', 'lion'\]\]",
        ),
        ({"data_path": "other"}, "data_path: what it names is another one: data was"),
    ],
)
def test_resuming_with_other_settings_is_refused(tmp_path, changed, said):
    exp = experiment(tmp_path, outer_loop_steps=1)
    _, folder, _ = run(exp, 1)
    if "data_path" in changed:
        (tmp_path / "other").write_bytes(b"something else entirely " * 300)
        changed = {"data_path": str(tmp_path / "other")}
    other = exp.model_copy(update={"outer_loop_steps": 9} | changed)
    shepherd, _, thread = start_shepherd(other, folder)
    worker = start_worker(shepherd.port, "w")
    before = (folder.path / "experiment.json").read_bytes()
    with pytest.raises(StateMismatch, match=said):
        thread.finish()
    assert (folder.path / "experiment.json").read_bytes() == before
    del worker


def test_other_settings_are_refused_before_anything_is_compiled(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=1)
    _, folder, _ = run(exp, 1)
    compiled = []

    def compile_for(target: str) -> bytes:
        compiled.append(target)
        return bundle()

    other = exp.model_copy(update={"tau": 3})
    _, _, thread = start_shepherd(other, folder, compile_for)
    with pytest.raises(StateMismatch, match="tau was 4, is 3"):
        thread.finish(5)
    shepherd = Shepherd(other, folder, compile_for, Watcher())
    with closing(shepherd), pytest.raises(StateMismatch, match="tau was 4, is 3"):
        shepherd.prepare("cpu")
    assert not compiled


def test_another_learning_rate_may_resume_a_run(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=2)
    _, folder, _ = run(exp, 1)
    changed = {"learning_rate": 0.5, "outer_loop_steps": 4, "optimizer": "adamw{}"}
    outcome, _, _ = run(exp.model_copy(update=changed), 1, folder)
    assert outcome.rounds == 4
    records = read(folder.ledger)[0]
    given = [r["experiment"] for r in records if r["kind"] == "started"]
    assert [settings["learning_rate"] for settings in given] == [0.1, 0.5]
    assert json.loads(folder.experiment.read_text())["learning_rate"] == 0.5
    asked = []

    def load(experiment, target):
        asked.append(experiment.learning_rate)
        return BigramTrainer(), f"{experiment.learning_rate}".ljust(64, "0")

    with closing(Replay(records, load)) as again:  # under both settings
        assert [made.same for made in again.rounds()] == [True] * 4
    assert sorted(set(asked)) == [0.1, 0.5]
    assert "outer_learning_rate" not in given[0]  # the algorithm may have its own


def test_a_run_has_one_shepherd(tmp_path):
    """The second one is told, and disturbs nothing."""
    exp = experiment(tmp_path)
    shepherd, _, thread = start_shepherd(exp, workers=1)
    with pytest.raises(ConfigError, match="another shepherd goes on with this run"):
        start_shepherd(exp, shepherd.folder)
    worker = start_worker(shepherd.port, "w")
    assert thread.finish().rounds == 5
    assert worker.finish(10)
    check(shepherd.folder.ledger)
