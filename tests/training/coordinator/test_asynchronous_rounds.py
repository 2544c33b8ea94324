"""Asynchronous local SGD under a shepherd: bundles, trainers, links on loopback.

Where the loss is linear the ledger alone says where a run must have ended, whatever
was stale, died or was done again (`helpers.oracles.ledger`).
"""

import random
import signal
import time
from functools import partial

import numpy as np
import pytest
from helpers.models.closed_form import bundle
from helpers.oracles.ledger import (
    delayed_nesterov,
    parts,
    saved_parameters,
    weighted_nesterov,
)
from helpers.present import present
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
    order,
    start_shepherd,
)

from pcp.errors import ConfigError
from pcp.runtime import Endpoint
from pcp.runtime.transport.credentials import Protection
from pcp.training.coordinator import stale_results
from pcp.training.storage.ledger import check, read
from pcp.training.storage.run_folder import RunFolder
from pcp.training.worker.worker import Identity, Worker

PUSHES = "async_local_sgd{period=3,lr=0.5,momentum=0.5,dylu=false}"
WORKER = "helpers.worlds.bundle_worker"


def keys(**more):
    return {"vocabulary_size": 128, "tau": 2, "checkpoint_every": 1} | more


def run(tmp_path, content, workers, name="run", loaders=(), **more):
    """A finished run: its crew, its last checkpoint, and the ledger's report."""
    exp = experiment(tmp_path, **keys(**more))
    crew = Crew(exp, tmp_path / name, content, workers, loaders)
    return crew, crew.finish(), check(crew.ledger)


def kinds(ledger):
    return [record["kind"] for record in read(ledger)[0]]


def versions(ledger):
    """Of each merge, how many versions had come since its push began."""
    began, ages = {}, []
    for record in read(ledger)[0]:
        if record["kind"] == "lease":
            began[record["worker"]] = record["version"]
        elif record["kind"] == "commit":
            ages += [record["round"] - 1 - began[n] for n in record["consumed"]]
    return ages


@pytest.mark.slow
def test_one_learner_with_a_period_of_one_is_diloco_of_one(tmp_path) -> None:
    """Nothing is stale: the same bits, through the whole of both runs."""
    pushes = bundle("quadratic", "async_local_sgd{period=1,lr=0.5}").to_bytes()
    rounds = bundle("quadratic", "diloco{lr=0.5}").to_bytes()
    _, mine, report = run(tmp_path, pushes, 1, "a", outer_loop_steps=4)
    _, theirs, _ = run(tmp_path, rounds, 1, "b", outer_loop_steps=4)
    assert report.pending == 0
    for name, value in theirs.parameters.items():
        assert np.array_equal(mine.parameters[name], value), name


@pytest.mark.slow  # a program more
def test_stale_pushes_count_once_each_and_move_as_if_they_were_not(tmp_path) -> None:
    """Linear loss: the order of the ledger is all; N pushes are a Nesterov step."""
    committed = partial(kinds, tmp_path / "run" / "ledger.jsonl")

    def last(number):
        """It begins from the first version, and is done when nine are there."""
        if number == 1:
            eventually(lambda: committed().count("commit") >= 9, 30)

    crew, saved, report = run(
        tmp_path,
        bundle("linear", PUSHES).to_bytes(),
        3,
        loaders=[slowly(0.01), slowly(0.02), stepping(last)],
        outer_loop_steps=12,
    )
    rounds = parts(crew.ledger, crew.shepherd.experiment)
    wanted = delayed_nesterov(rounds, 0.5, 0.5, 3)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)
    pushes = [[p for pushed in rounds[i : i + 3] for p in pushed] for i in (0, 3, 6, 9)]
    as_rounds = weighted_nesterov(pushes, 0.5, 0.5)
    np.testing.assert_allclose(saved_parameters(saved), as_rounds, rtol=0, atol=2e-6)
    ages = versions(crew.ledger)
    assert len(ages) == 12
    assert max(ages) >= 9, "nothing was stale: the test says nothing"
    # Nobody waited for the slow one; what was given out beyond the end was used too.
    names = [p.worker for pushed in rounds for p in pushed]
    assert "w2" not in names[:9]
    assert "w2" in names
    assert report.pending == 0
    # A learner that fetches takes parameters, momentum, buffer and the count.
    state = 3 * 4 * len(wanted) + 4
    fetched = {r.bytes_sent for r in crew.watcher.rounds}
    assert state in fetched
    assert fetched <= {0, state}


def test_learners_with_a_key_fetch_from_each_other(tmp_path) -> None:
    """Who holds the newest version lets nobody in who has no key."""
    content, key = bundle("linear", PUSHES).to_bytes(), b"a secret of eight or more"
    exp = experiment(tmp_path, **keys(outer_loop_steps=6, heartbeat_limit_seconds=0.4))
    shepherd, watcher, thread = start_shepherd(
        exp,
        compile_for=lambda target: content,
        workers=2,
        protection=Protection(key=key),
    )

    def work(name):
        end = Endpoint.listen("127.0.0.1:0", key=key)
        who = Identity(name, "127.0.0.1", shepherd.port)
        quiet, protection = (lambda line: None), Protection(key=key)
        return Worker(who, end, slowly(0.02), quiet, protection=protection).run()

    crew = [Background(partial(work, f"w{i}")) for i in range(2)]
    checkpoint_of(thread.finish(60))
    for worker in crew:
        worker.finish(20)
    assert len(watcher.rounds) == 6
    assert any(r.bytes_sent for r in watcher.rounds), "nobody fetched anything"


@pytest.mark.slow
def test_a_merge_of_a_quorum_on_own_clocks(tmp_path) -> None:
    """`decoupled`, K = M: rounds of DiLoCo; K < M: nobody waits for the slowest."""
    code = bundle("linear", "decoupled{own_clocks=true,radial=false,lr=0.5}").to_bytes()
    loaders = [slowly(0.01), slowly(0.01), slowly(0.15)]
    for quorum, sizes in ((3, {3}), (2, {2, 3})):
        crew, saved, _ = run(
            tmp_path,
            code,
            3,
            name=f"k{quorum}",
            loaders=loaders,
            outer_loop_steps=4,
            quorum=quorum,
        )
        rounds = parts(crew.ledger, crew.shepherd.experiment)
        wanted = weighted_nesterov(rounds, 0.5, 0.9)
        np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)
        assert {r.workers for r in crew.watcher.rounds} <= sizes
        if quorum == 3:
            assert set(versions(crew.ledger)) == {0}


@pytest.mark.slow
def test_steps_follow_the_measured_speed(tmp_path) -> None:
    """DyLU: who is four times slower makes a fourth of the steps, as often."""
    crew, _, _ = run(
        tmp_path,
        bundle("linear", PUSHES.replace("false", "true")).to_bytes(),
        2,
        loaders=[slowly(0.08), slowly(0.32)],  # much more than the steps themselves
        outer_loop_steps=10,
        tau=8,
    )
    rounds = parts(crew.ledger, crew.shepherd.experiment)
    steps: dict[str, list[int]] = {"w0": [], "w1": []}
    for pushed in rounds:
        for part in pushed:
            steps[part.worker].append(part.steps)
    assert steps["w0"][-1] == 8
    assert 1 <= steps["w1"][-1] <= 4
    assert len(steps["w1"]) >= 3


@pytest.mark.slow
def test_another_shepherd_goes_on_with_the_leases_that_are_out(tmp_path) -> None:
    """Learners keep on; what they push counts once, in the run that is continued."""
    content = bundle("linear", PUSHES).to_bytes()
    exp = experiment(tmp_path, **keys(outer_loop_steps=16, checkpoint_every=100))
    folder, port = RunFolder.at(tmp_path / "run", exp), free_port()
    compiled = {"compile_for": lambda target: content, "workers": 2, "port": port}
    first, watcher, thread = start_shepherd(exp, folder, **compiled)
    crew = [
        Background(lambda i=i: crew_member(f"w{i}", port, slowly(0.05 * (i + 1))))
        for i in range(2)
    ]
    watcher.wait_for_round(4)

    def dies():
        raise OSError("the machine is gone")

    first.turn = dies
    with pytest.raises(OSError, match="gone"):
        thread.finish(20)
    before = len(kinds(folder.ledger))
    _, _, thread = start_shepherd(exp, folder, **compiled)
    saved = checkpoint_of(thread.finish(60))
    assert [worker.finish(20) for worker in crew] == ["the run is complete"] * 2
    rounds = parts(folder.ledger, exp)
    assert len(rounds) == check(folder.ledger).rounds == 16
    wanted = delayed_nesterov(rounds, 0.5, 0.5, 3)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)
    assert not {"rewind", "returned"} & set(kinds(folder.ledger)[before:])


@pytest.mark.slow
def test_a_run_is_resumed_from_its_checkpoint(tmp_path) -> None:
    """All are gone; more learners come than there were; it adds up as one run."""
    content = bundle("linear", PUSHES).to_bytes()
    run(tmp_path, content, 2, outer_loop_steps=5, loaders=[slowly(0.02)] * 2)
    crew, saved, _ = run(
        tmp_path, content, 3, outer_loop_steps=12, loaders=[slowly(0.02)] * 3
    )
    assert crew.watcher.rounds[0].round == 6
    rounds = parts(crew.ledger, crew.shepherd.experiment)
    wanted = delayed_nesterov(rounds, 0.5, 0.5, 3)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_who_is_drained_pushes_what_it_has_begun(tmp_path) -> None:
    """And a pause lets nobody begin; both through the operator's line."""
    content = bundle("linear", PUSHES).to_bytes()
    exp = experiment(tmp_path, **keys(outer_loop_steps=30))
    crew = Crew(exp, tmp_path / "run", content, 2, [slowly(0.05), slowly(0.2)])
    shepherd = crew.shepherd
    crew.watcher.wait_for_round(3)
    assert "leaves" in order(shepherd, "drain", worker=1)
    assert crew.workers[1].finish(20) == "drained by the operator"
    assert "no round begins" in order(shepherd, "pause")
    # What is under way ends.
    eventually(lambda: not present(shepherd.training.rounds).attempt, 20)
    before = shepherd.committed
    time.sleep(0.5)
    assert shepherd.committed == before < 30
    order(shepherd, "resume")
    crew.run.finish(60)
    assert crew.workers[0].finish(20) == "the run is complete"
    # All samples of the drained learner were merged: none was given back.
    assert "returned" not in kinds(crew.ledger)
    assert check(crew.ledger).rounds == 30


def test_late_results_have_no_meaning_here(tmp_path) -> None:
    exp = experiment(tmp_path, **keys(late="next", algorithm=PUSHES))
    with pytest.raises(ConfigError, match="'next' does not go with async_local_sgd"):
        stale_results.check(exp, bundle("linear", PUSHES).manifest)


class TestProcesses:
    """Learners as processes, which are killed."""

    def start(self, tmp_path, processes, pauses, **more):
        content = bundle("linear", PUSHES).to_bytes()
        exp = experiment(
            tmp_path, **keys(heartbeat_limit_seconds=0.8, heartbeat_seconds=0.1, **more)
        )
        shepherd, watcher, thread = start_shepherd(
            exp, compile_for=lambda target: content, workers=len(pauses)
        )
        crew = {
            f"w{i}": processes.start(WORKER, f"w{i}", shepherd.port, pause)
            for i, pause in enumerate(pauses)
        }
        return shepherd, watcher, thread, crew

    def ended(self, shepherd, thread):
        saved = checkpoint_of(thread.finish(60))
        ledger = shepherd.folder.ledger
        report = check(ledger)
        rounds = parts(ledger, shepherd.experiment)
        wanted = delayed_nesterov(rounds, 0.5, 0.5, 3)
        np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)
        return rounds, report

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_storm(self, tmp_path, processes, seed) -> None:
        """Anybody is killed or stopped at any time; others come: it all adds up."""
        draw, rounds = random.Random(seed), 80
        shepherd, watcher, thread, crew = self.start(
            tmp_path,
            processes,
            [0.06, 0.09, 0.12],
            outer_loop_steps=rounds,
            checkpoint_every=5,
            max_epochs=20,
        )
        fired = {signal.SIGKILL: 0, signal.SIGSTOP: 0}
        watcher.wait_for_round(2)
        until = time.monotonic() + 100
        while thread.is_alive() and time.monotonic() < until:
            time.sleep(draw.uniform(0.3, 1.5))
            name = draw.choice(sorted(crew))
            how = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            crew[name].signal(how)
            fired[how] += 1
            if how == signal.SIGSTOP:
                time.sleep(1.2)  # longer than heartbeats may be missing
                crew[name].signal(signal.SIGCONT)
                continue
            crew.pop(name)
            new = f"n{sum(fired.values())}"
            crew[new] = processes.start(WORKER, new, shepherd.port, 0.08)
        done, _ = self.ended(shepherd, thread)
        assert len(done) == rounds
        assert fired[signal.SIGKILL] >= 3, fired

    @pytest.mark.slow
    def test_a_learner_dies_in_its_steps(self, tmp_path, processes) -> None:
        """Nothing waits for it; its samples are others'."""
        shepherd, watcher, thread, crew = self.start(
            tmp_path, processes, [0.02, 0.02, 0.6], outer_loop_steps=14
        )
        watcher.wait_for_round(4)
        crew["w2"].signal(signal.SIGKILL)
        rounds, _ = self.ended(shepherd, thread)
        assert len(rounds) == 14
        found = kinds(shepherd.folder.ledger)
        assert found.count("returned") == 1
        assert "rewind" not in found

    def test_the_holder_of_the_newest_version_dies(self, tmp_path, processes) -> None:
        """Its push is lost and made again by others; theirs stay, and count once."""
        shepherd, watcher, thread, crew = self.start(
            tmp_path,
            processes,
            [0.02, 0.3, 0.3],
            outer_loop_steps=12,
            checkpoint_every=100,
        )
        ledger = shepherd.folder.ledger
        watcher.wait_for_round(3)
        order(shepherd, "pause")
        eventually(lambda: shepherd.status()["phase"] == "paused", 20)
        commits = [r for r in read(ledger)[0] if r["kind"] == "commit"]
        (holder,) = commits[-1]["consumed"]
        crew.pop(holder).signal(signal.SIGKILL)
        order(shepherd, "resume")
        rounds, _ = self.ended(shepherd, thread)
        assert len(rounds) == 12
        assert kinds(ledger).count("rewind") == 1
        # What the others did before the death was not given back.
        returned = {r["worker"] for r in read(ledger)[0] if r["kind"] == "returned"}
        assert returned <= {holder}
        assert all(other.popen.poll() in (None, 0) for other in crew.values())
