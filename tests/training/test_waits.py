"""Slow members of rounds in which all meet: who holds up whom, and what is done."""

import math
import time

import numpy as np
import pytest
from helpers.crews import Crew, load_bundle
from helpers.outer_models import bundle
from helpers.training_runs import experiment

from pcp.training import checkpoint as checkpoints
from pcp.training import tensors
from pcp.training.ledger import check
from pcp.training.protocol import Meeting
from pcp.training.recovery import shared_of
from pcp.training.run_folder import RunFolder
from pcp.training.waits import Waits

NAMES = ("a", "b", "c")


def at(entered: int, waits: float | None) -> Meeting:
    return Meeting(round=1, epoch=1, entered=entered, waits=waits)


def slow(waits: Waits, quorum=None, grace=0.0, earliest=0.0, deadline=math.inf):
    return waits.holding_up(NAMES, quorum, grace, earliest, deadline)


def test_only_a_report_from_after_the_grace_counts() -> None:
    waits = Waits()
    waits.heard("a", at(3, 0.2), 10.0)  # waits since 9.8
    waits.heard("b", at(3, 0.1), 10.1)  # since 10.0
    waits.heard("c", at(2, None), 10.2)
    assert slow(waits, quorum=2, grace=0.5) == []
    waits.heard("c", at(2, None), 10.6)
    assert slow(waits, quorum=2, grace=0.5) == ["c"]
    assert slow(waits, quorum=3, grace=0.5) == []
    assert slow(waits, quorum=2, grace=0.5, earliest=11.0) == []
    waits.heard("c", at(3, 0.0), 10.7)
    assert slow(waits, quorum=2, grace=0.5) == []


def test_a_deadline_asks_for_no_quorum_but_for_somebody_who_waits() -> None:
    waits = Waits()
    for name in NAMES:
        waits.heard(name, at(3, None), 20.0)
    assert slow(waits, deadline=15.0) == []  # all of them compute
    waits.heard("a", at(4, 0.1), 20.1)
    assert slow(waits, deadline=15.0) == ["b", "c"]
    assert slow(waits, deadline=20.05) == []


def test_who_is_somewhere_else_is_behind_those_who_form_the_group() -> None:
    waits = Waits()
    waits.heard("a", at(0, 2.0), 10.0)
    waits.heard("b", None, 10.0)
    assert slow(waits, quorum=1, grace=1.0) == ["b"]


def once_slow(step_number: int, seconds: float):
    """Loads a trainer of which one step takes so long."""

    def loaded(content):
        trainer, made = load_bundle(content), []
        step = trainer.step

        def later(batches):
            made.append(1)
            if len(made) == step_number:
                time.sleep(seconds)
            return step(batches)

        trainer.step = later
        return trainer

    return loaded


STREAMING = "streaming_diloco{fragments=2,wire=f32}"
SLOPES = "mezo{eps=0.0625,noise=signs}"


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("ddp", {"quorum": 2, "grace_seconds": 0.3}),
        pytest.param(
            "ddp",
            {"round_deadline_seconds": 0.8, "outer_loop_steps": 60},
            marks=pytest.mark.slow,
            id="limit",
        ),
        pytest.param(
            STREAMING, {"quorum": 2, "grace_seconds": 0.3}, marks=pytest.mark.slow
        ),
        pytest.param(
            SLOPES, {"quorum": 2, "grace_seconds": 0.3}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_member_that_holds_the_others_up_is_left_out(tmp_path, algorithm, keys):
    """Its share is the others', who do not wait for it; then it takes part again."""
    content = bundle("quadratic", algorithm).to_bytes()
    more = {"vocabulary_size": 128, "tau": 3, "checkpoint_every": 1}
    beats = {"heartbeat_seconds": 0.1, "heartbeat_limit_seconds": 6.0}
    keys = {"outer_loop_steps": 8, "max_epochs": 50} | keys
    exp = experiment(tmp_path, **more, **beats, **keys)
    pauses = [paced(0.03)] * 2 + [once_slow(5, 3.0)]
    crew = Crew(exp, RunFolder.at(tmp_path / "run", exp), content, 3, pauses)
    began = time.monotonic()
    outcome = crew.run.finish(60)
    for worker in crew.workers:
        worker.finish(20)
    assert outcome.rounds == exp.outer_loop_steps
    check(crew.shepherd.folder.ledger)
    sizes = [record.workers for record in crew.watcher.rounds]
    assert sizes[0] == 3
    assert 2 in sizes
    if len(sizes) > 8:
        assert sizes[-1] == 3, "it takes part again"
    assert any("is left out" in line for line in crew.watcher.lines)
    assert max(record.seconds for record in crew.watcher.rounds) < 2.5, "they waited"
    assert time.monotonic() - began < 60
    saved = checkpoints.load(outcome.checkpoint)
    assert tensors.digest(shared_of(saved)) == saved.info["digest"]
    assert all(np.isfinite(x).all() for x in saved.parameters.values())


def paced(seconds: float):
    """Loads a trainer whose steps take so long."""

    def loaded(content):
        trainer = load_bundle(content)
        step = trainer.step

        def later(batches):
            time.sleep(seconds)
            return step(batches)

        trainer.step = later
        return trainer

    return loaded
