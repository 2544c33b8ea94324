"""Late results: what a member did after the round went on without it."""

import time

import numpy as np
import pytest
from helpers.crews import Crew, crew_member, load_bundle, slowly
from helpers.ledger_oracle import parameters, parts, weighted_nesterov
from helpers.outer_models import bundle
from helpers.processes import free_port
from helpers.training_runs import Background, experiment, start_shepherd

from pcp.errors import ConfigError
from pcp.training import checkpoint as checkpoints
from pcp.training import lateness, tensors
from pcp.training.ledger import check, read
from pcp.training.recovery import shared_of
from pcp.training.run_folder import RunFolder

KEYS = {"vocabulary_size": 128, "tau": 2, "checkpoint_every": 4, "late": "next"}


def run(tmp_path, algorithm, loaders, **more):
    content = bundle("linear", algorithm).to_bytes()
    exp = experiment(tmp_path, **(KEYS | more))
    crew = Crew(exp, RunFolder.at(tmp_path / "run", exp), content, 3, loaders)
    outcome = crew.run.finish(60)
    for worker in crew.workers:
        worker.finish(20)
    saved = checkpoints.load(outcome.checkpoint)
    assert tensors.digest(shared_of(saved)) == saved.info["digest"]
    check(crew.shepherd.folder.ledger)
    return crew, saved


def test_late_deltas_count_in_the_next_round_at_a_discount(tmp_path) -> None:
    """A linear loss: Σ λ^a w Δ / Σ λ^a w, with what the ledger says was late."""
    crew, saved = run(
        tmp_path,
        "diloco{lr=0.5,momentum=0.5}",
        [slowly(0.05), slowly(0.05), slowly(0.14)],
        outer_loop_steps=10,
        quorum=2,
        grace_seconds=0.02,
        late_discount=0.5,
    )
    ledger = crew.shepherd.folder.ledger
    rounds = parts(ledger, crew.shepherd.experiment)
    ages = [part.age for members in rounds for part in members]
    assert sum(age > 0 for age in ages) >= 2, "nothing was late"
    found = parameters(saved)
    wanted = weighted_nesterov(rounds, 0.5, 0.5, discount=0.5)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    other = weighted_nesterov(rounds, 0.5, 0.5)
    assert np.abs(other - found).max() > 1e-4, "the discount makes no difference"
    # Nobody's samples went back to the pool: the slow one's were used.
    kinds = [record["kind"] for record in read(ledger)[0]]
    assert "returned" not in kinds


@pytest.mark.slow
def test_who_dies_while_it_is_late_gives_its_samples_back(tmp_path) -> None:
    def dying(content):
        trainer, made = load_bundle(content), []

        def step(batches):
            made.append(1)
            time.sleep(0.25)
            raise SystemExit("killed")

        trainer.step = step
        return trainer

    content = bundle("linear", "diloco{lr=0.5,momentum=0.5}").to_bytes()
    keys = KEYS | {"outer_loop_steps": 12, "quorum": 2, "grace_seconds": 0.02}
    exp = experiment(tmp_path, **keys)
    loaders = [slowly(0.02), slowly(0.02), dying]
    crew = Crew(exp, RunFolder.at(tmp_path / "run", exp), content, 3, loaders)
    outcome = crew.run.finish(60)
    ledger = crew.shepherd.folder.ledger
    kinds = [record["kind"] for record in read(ledger)[0]]
    assert kinds.count("late") == kinds.count("returned") == 1
    assert check(ledger).rounds == 12
    saved = checkpoints.load(outcome.checkpoint)
    wanted = weighted_nesterov(parts(ledger, exp), 0.5, 0.5)
    np.testing.assert_allclose(parameters(saved), wanted, rtol=0, atol=2e-6)
    for worker in crew.workers[:2]:
        worker.finish(20)


def test_another_shepherd_gives_back_what_was_late(tmp_path) -> None:
    """It does not know how far they are; who was late is in the next rounds again."""
    content = bundle("linear", "diloco{lr=0.5,momentum=0.5}").to_bytes()
    keys = KEYS | {"outer_loop_steps": 6, "quorum": 2, "grace_seconds": 0.02}
    exp = experiment(tmp_path, **keys)
    folder, port = RunFolder.at(tmp_path / "run", exp), free_port()
    given = {"compile_for": lambda target: content, "workers": 3, "port": port}
    first, _, thread = start_shepherd(exp, folder, **given)
    turn = first.turn

    def dies():
        turn()
        if first.ledger.progress.late and first.committed:
            raise OSError("the machine is gone")

    first.turn = dies
    crew = [
        Background(lambda i=i: crew_member(f"w{i}", port, slowly((0.01, 0.01, 0.3)[i])))
        for i in range(3)
    ]
    with pytest.raises(OSError, match="gone"):
        thread.finish(20)
    assert list(first.ledger.progress.late) == ["w2"]
    before = len(read(folder.ledger)[0])
    _, _, thread = start_shepherd(exp, folder, **given)
    saved = checkpoints.load(thread.finish(30).checkpoint)
    assert [worker.finish(20) for worker in crew] == ["the run is complete"] * 3
    returned, *_ = (
        r for r in read(folder.ledger)[0][before:] if r["kind"] != "started"
    )
    assert (returned["kind"], returned["worker"]) == ("returned", "w2")
    assert check(folder.ledger).rounds == 6
    wanted = weighted_nesterov(parts(folder.ledger, exp), 0.5, 0.5)
    np.testing.assert_allclose(parameters(saved), wanted, rtol=0, atol=2e-6)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("async_diloco", "snoo")]


@pytest.mark.parametrize("algorithm", ["ddp", *SLOW, "noloco"])
def test_where_no_delta_can_wait_it_is_an_error(tmp_path, algorithm) -> None:
    manifest = bundle("linear", algorithm).manifest
    with pytest.raises(ConfigError, match=f"late: 'next' does not go with {algorithm}"):
        lateness.check(experiment(tmp_path, algorithm=algorithm, **KEYS), manifest)
    lateness.check(experiment(tmp_path), manifest)
