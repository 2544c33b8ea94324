"""Algorithms under a shepherd: members that die, private state in checkpoints."""

import numpy as np
import pytest
from helpers.crews import Crew, load_bundle
from helpers.outer_models import bundle
from helpers.training_runs import experiment

from pcp.errors import RuntimeFault
from pcp.training import checkpoint as checkpoints
from pcp.training import tensors
from pcp.training.ledger import check
from pcp.training.recovery import shared_of
from pcp.training.run_folder import RunFolder

SPARSE = "sparseloco{k=64}"
OWN = ("delta", "momentum", "replica")


def _keys(**keys):
    return {"vocabulary_size": 128, "tau": 2, "checkpoint_every": 1} | keys


RESUMED = {
    SPARSE: ["error.h.0.w", "error.h.1.v"],
    "streaming_diloco{fragments=2}": ["local.h.0.w", "local.h.1.v"],
    "eager": [*(f"{what}.h.{p}" for what in OWN for p in ("0.w", "1.v")), "weight"],
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(RESUMED))
def test_private_state_is_resumed_with_its_worker(tmp_path, algorithm) -> None:
    """Stopped after two rounds and resumed: the same bits as without the stop."""
    content = bundle("quadratic", algorithm).to_bytes()
    whole = experiment(tmp_path, **_keys(outer_loop_steps=4))
    short = experiment(tmp_path, **_keys(outer_loop_steps=2))

    def play(exp, name):
        crew = Crew(exp, RunFolder.at(tmp_path / name, exp), content, 2)
        outcome = crew.run.finish(60)
        assert [w.finish(20) for w in crew.workers]
        return checkpoints.load(outcome.checkpoint)

    first = play(short, "stopped")
    names = RESUMED[algorithm]
    assert [sorted(p) for p in first.private] == [names] * 2
    assert not np.array_equal(*(p[names[0]] for p in first.private))
    resumed, unbroken = play(whole, "stopped"), play(whole, "unbroken")
    assert resumed.round == unbroken.round == 4
    assert tensors.digest(shared_of(resumed)) == tensors.digest(shared_of(unbroken))
    for mine, theirs in zip(resumed.private, unbroken.private, strict=True):
        assert tensors.digest(mine) == tensors.digest(theirs)


@pytest.mark.parametrize("fault", [SystemExit("killed"), RuntimeFault("a lost link")])
def test_a_fault_between_two_steps_that_all_make_together(tmp_path, fault) -> None:
    """The round is made again from its beginning, by those who are left, in step."""
    content = bundle("quadratic", "ddp").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=3, tau=3))
    trainers = []

    def failing(code):
        trainer, made = load_bundle(code), []
        step = trainer.step

        def until_the_fifth(batches):
            made.append(1)
            if len(made) == 5:
                raise fault
            return step(batches)

        trainer.step = until_the_fifth
        trainers.append(made)
        return trainer

    crew = Crew(
        exp, RunFolder.at(tmp_path / "run", exp), content, 3, [load_bundle, failing]
    )
    outcome = crew.run.finish(60)
    check(crew.shepherd.folder.ledger)
    dies = isinstance(fault, SystemExit)
    assert len(trainers[0]) == (5 if dies else 5 + 3 + 3)
    assert [r.workers for r in crew.watcher.rounds] == (
        [3, 2, 2] if dies else [3, 3, 3]
    )
    saved = checkpoints.load(outcome.checkpoint)
    assert tensors.digest(shared_of(saved)) == saved.info["digest"]
    assert saved.outer["inner.step"] == 9  # no step of the broken round counted
    for i, worker in enumerate(crew.workers):
        if dies and i == 1:
            with pytest.raises(SystemExit):
                worker.finish(20)
        else:
            worker.finish(20)


def test_an_algorithm_for_one_worker_keeps_the_others_standing_by(tmp_path) -> None:
    content = bundle("linear", "snoo{lr=0.5}").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=3))
    crew = Crew(exp, RunFolder.at(tmp_path / "run", exp), content, 2)
    assert crew.run.finish(60).rounds == 3
    assert [w.finish(20) for w in crew.workers]
    assert [r.workers for r in crew.watcher.rounds] == [1, 1, 1]


@pytest.mark.slow
def test_a_member_that_dies_beside_an_exchange(tmp_path) -> None:
    """What it had in flight is lost with it; the others' is exchanged again."""
    content = bundle("quadratic", "async_diloco{lr=0.5}").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=4, tau=3))

    def dying(code):
        trainer, made = load_bundle(code), []
        step = trainer.step

        def until_the_fifth(batches):
            made.append(1)
            if len(made) == 5:
                raise SystemExit("killed")
            return step(batches)

        trainer.step = until_the_fifth
        return trainer

    crew = Crew(
        exp, RunFolder.at(tmp_path / "run", exp), content, 3, [load_bundle, dying]
    )
    outcome = crew.run.finish(60)
    check(crew.shepherd.folder.ledger)
    assert [r.workers for r in crew.watcher.rounds] == [3, 2, 2, 2]
    saved = checkpoints.load(outcome.checkpoint)
    assert tensors.digest(shared_of(saved)) == saved.info["digest"]
    flying = [p["delta.h.0.w"] for p in saved.private]
    assert len(flying) == 2
    assert not np.array_equal(*flying)
    assert all(p["weight"] == 3 * 2 * 300 for p in saved.private)
    for i in (0, 2):
        crew.workers[i].finish(20)
