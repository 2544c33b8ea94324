"""Late results: what a member did after the round went on without it."""

import numpy as np
import pytest
from helpers.models.closed_form import bundle
from helpers.oracles.ledger import parts, saved_parameters, weighted_nesterov
from helpers.servers.processes import free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.training_cluster import (
    Crew,
    crew_member,
    slowly,
    stepping,
)
from helpers.worlds.training_runs import (
    Background,
    checkpoint_of,
    experiment,
    start_shepherd,
)

from pcp.errors import ConfigError
from pcp.training.coordinator import stale_results
from pcp.training.storage.ledger import check, read
from pcp.training.storage.run_folder import RunFolder

KEYS = {"vocabulary_size": 128, "tau": 2, "checkpoint_every": 4, "late": "next"}


def run(tmp_path, algorithm, loaders, dead=(), **more):
    content = bundle("linear", algorithm).to_bytes()
    exp = experiment(tmp_path, **(KEYS | more))
    crew = Crew(exp, tmp_path / "run", content, 3, loaders)
    return crew, crew.finish(dead)


def kinds(ledger):
    return [record["kind"] for record in read(ledger)[0]]


def test_late_deltas_count_in_the_next_round_at_a_discount(tmp_path) -> None:
    """A linear loss: Σ λ^a w Δ / Σ λ^a w, with what the ledger says was late.

    One begins its first two leases when their rounds were committed without it.
    """
    ledger = tmp_path / "run" / "ledger.jsonl"

    def is_late(number: int) -> None:
        if number in (1, 1 + KEYS["tau"]):
            eventually(lambda: "commit" in since_late(number // 2), 30)

    def since_late(times: int) -> list[str]:
        """The kinds of lines after somebody was late once more than so many times."""
        said = kinds(ledger)
        late = [i for i, kind in enumerate(said) if kind == "late"]
        return said[late[times] :] if len(late) > times else []

    crew, saved = run(
        tmp_path,
        "diloco{lr=0.5,momentum=0.5}",
        [slowly(0.05), slowly(0.05), stepping(is_late)],
        outer_loop_steps=10,
        quorum=2,
        grace_seconds=0.02,
        late_discount=0.5,
        heartbeat_limit_seconds=20.0,  # nobody is dead on a busy machine
    )
    rounds = parts(crew.ledger, crew.shepherd.experiment)
    ages = [part.age for members in rounds for part in members]
    assert sum(age > 0 for age in ages) >= 2, "nothing was late"
    found = saved_parameters(saved)
    wanted = weighted_nesterov(rounds, 0.5, 0.5, discount=0.5)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    other = weighted_nesterov(rounds, 0.5, 0.5)
    assert np.abs(other - found).max() > 1e-4, "the discount makes no difference"
    # Nobody's samples went back to the pool: the slow one's were used.
    assert "returned" not in kinds(crew.ledger)


@pytest.mark.slow
def test_who_dies_while_it_is_late_gives_its_samples_back(tmp_path) -> None:
    ledger = tmp_path / "run" / "ledger.jsonl"

    def dies(number):
        eventually(lambda: "late" in kinds(ledger), 30)
        raise SystemExit("killed")

    crew, saved = run(
        tmp_path,
        "diloco{lr=0.5,momentum=0.5}",
        [slowly(0.02), slowly(0.02), stepping(dies)],
        dead=[2],
        outer_loop_steps=12,
        quorum=2,
        grace_seconds=0.02,
    )
    assert kinds(ledger).count("late") == kinds(ledger).count("returned") == 1
    rounds = parts(ledger, crew.shepherd.experiment)
    assert len(rounds) == 12
    wanted = weighted_nesterov(rounds, 0.5, 0.5)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)


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
    late = set(first.ledger.progress.late)  # the slow one, and others on a busy machine
    before = len(read(folder.ledger)[0])
    _, _, thread = start_shepherd(exp, folder, **given)
    saved = checkpoint_of(thread.finish(30))
    assert [worker.finish(20) for worker in crew] == ["the run is complete"] * 3
    returned, *_ = (
        r for r in read(folder.ledger)[0][before:] if r["kind"] != "started"
    )
    assert returned["kind"] == "returned"
    assert returned["worker"] in late
    assert check(folder.ledger).rounds == 6
    # Members of the rounds that follow may be late again.
    discount = exp.late_discount
    wanted = weighted_nesterov(parts(folder.ledger, exp), 0.5, 0.5, discount=discount)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("async_diloco", "snoo")]


@pytest.mark.slow  # a program for each
@pytest.mark.parametrize("algorithm", ["ddp", *SLOW, "noloco"])
def test_where_no_delta_can_wait_it_is_an_error(tmp_path, algorithm) -> None:
    manifest = bundle("linear", algorithm).manifest
    with pytest.raises(ConfigError, match=f"late: 'next' does not go with {algorithm}"):
        stale_results.check(experiment(tmp_path, algorithm=algorithm, **KEYS), manifest)
    stale_results.check(experiment(tmp_path), manifest)
