"""Algorithms under a shepherd: members that die, private state in checkpoints."""

import numpy as np
import pytest
from helpers.models.closed_form import bundle
from helpers.worlds.training_cluster import Crew, Hasty, load_bundle, stepping
from helpers.worlds.training_runs import experiment

from pcp.errors import RuntimeFault
from pcp.training.storage import safetensors_io
from pcp.training.storage.snapshots import shared_of

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
    patient = {"heartbeat_limit_seconds": 6.0}
    whole = experiment(tmp_path, **_keys(outer_loop_steps=4, **patient))
    short = experiment(tmp_path, **_keys(outer_loop_steps=2, **patient))

    def play(exp, name):
        crew = Crew(exp, tmp_path / name, content, 2, shepherd=Hasty)
        saved = crew.finish()
        assert set(crew.sizes()) == {2}
        return saved

    first = play(short, "stopped")
    names = RESUMED[algorithm]
    assert [sorted(p) for p in first.private] == [names] * 2
    one, other = (private[names[0]] for private in first.private)
    assert not np.array_equal(one, other)
    resumed, unbroken = play(whole, "stopped"), play(whole, "unbroken")
    assert resumed.round == unbroken.round == 4
    assert safetensors_io.digest(shared_of(resumed)) == safetensors_io.digest(
        shared_of(unbroken)
    )
    for mine, theirs in zip(resumed.private, unbroken.private, strict=True):
        assert safetensors_io.digest(mine) == safetensors_io.digest(theirs)


def _failing(fault: Exception | SystemExit, made: list[int]):
    """Loads a trainer whose fifth inner step fails; the steps go to `made`."""

    def before(number):
        made.append(number)
        if number == 5:
            raise fault

    return stepping(before)


@pytest.mark.parametrize("fault", [SystemExit("killed"), RuntimeFault("a lost link")])
def test_a_fault_between_two_steps_that_all_make_together(tmp_path, fault) -> None:
    """The round is made again from its beginning, by those who are left, in step."""
    content = bundle("quadratic", "ddp").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=3, tau=3))
    made = []
    loaders = [load_bundle, _failing(fault, made)]
    crew = Crew(exp, tmp_path / "run", content, 3, loaders)
    dies = isinstance(fault, SystemExit)
    saved = crew.finish(dead=[1] if dies else [])
    assert len(made) == (5 if dies else 5 + 3 + 3)
    assert crew.sizes() == ([3, 2, 2] if dies else [3, 3, 3])
    assert saved.outer["inner.step"] == 9  # no step of the broken round counted


@pytest.mark.slow  # a run more
def test_an_algorithm_for_one_worker_keeps_the_others_standing_by(tmp_path) -> None:
    content = bundle("linear", "snoo{lr=0.5}").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=3))
    crew = Crew(exp, tmp_path / "run", content, 2)
    assert crew.finish().round == 3
    assert crew.sizes() == [1, 1, 1]


@pytest.mark.slow
def test_a_member_that_dies_beside_an_exchange(tmp_path) -> None:
    """What it had in flight is lost with it; the others' is exchanged again."""
    content = bundle("quadratic", "async_diloco{lr=0.5}").to_bytes()
    exp = experiment(tmp_path, **_keys(outer_loop_steps=4, tau=3))
    loaders = [load_bundle, _failing(SystemExit("killed"), [])]
    crew = Crew(exp, tmp_path / "run", content, 3, loaders)
    saved = crew.finish(dead=[1])
    assert crew.sizes() == [3, 2, 2, 2]
    one, other = (private["delta.h.0.w"] for private in saved.private)
    assert not np.array_equal(one, other)
    assert all(p["weight"] == 3 * 2 * 300 for p in saved.private)
