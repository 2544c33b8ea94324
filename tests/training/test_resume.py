"""A run that is killed and resumed has the bits of one that was not."""

import json
import signal

import numpy as np
import pytest
from helpers.servers.processes import Processes
from helpers.worlds.resumed_runs import bundle, keys
from helpers.worlds.training_cluster import Crew, Hasty, load_bundle
from helpers.worlds.training_runs import experiment

from pcp.training.storage import safetensors_io
from pcp.training.storage.ledger import check, read
from pcp.training.storage.snapshots import snapshot_of
from pcp.training.worker.worker_state import WorkerState

SCHEDULE = "schedule=warmup_cosine,warmup_steps=2,total_steps=10"
OPTIMIZERS = ("adamw", "sgd", "nesterov", "muon", "lion", "adafactor")
ALGORITHMS = (
    "diloco",
    "streaming_diloco{fragments=2}",
    "async_diloco",
    "eager",
    "noloco",
    "muloco{wire=2bit}",
    "sparseloco{k=64}",
    "demo",
    "ddp",
    "snoo",
    "decoupled",
    "average",
    "mezo",
    "forward_gradient",
)
SLOW = pytest.mark.slow
CHANGES = ((1, 2), (2, 3))
DEFAULT = {("muloco{wire=2bit}", "nesterov")}


def _cases():
    for algorithm in ALGORITHMS:
        for optimizer in OPTIMIZERS:
            fast = (algorithm, optimizer) in DEFAULT
            marks = () if fast else SLOW
            yield pytest.param(algorithm, optimizer, marks=marks)


def _same(mine, theirs) -> None:
    assert mine.round == theirs.round
    assert mine.info["digest"] == theirs.info["digest"]
    for what in ("parameters", "outer"):
        left, right = getattr(mine, what), getattr(theirs, what)
        assert safetensors_io.digest(left) == safetensors_io.digest(right), what
    for what in ("workers", "private"):
        left, right = getattr(mine, what), getattr(theirs, what)
        for rank, (own, other) in enumerate(zip(left, right, strict=True)):
            for name in own:
                one, two = ({"": s[name]} for s in (own, other))
                assert safetensors_io.digest(one) == safetensors_io.digest(two), (
                    what,
                    rank,
                    name,
                )


def _finished(exp, folder, content, workers, *, alone=False, **more):
    """The last checkpoint of a run in which all took part in each round.

    Or the first one, `alone`.
    """
    crew = Crew(exp, folder, content, workers, shepherd=Hasty, **more)
    saved = crew.finish()
    assert set(crew.sizes()) == {1 if alone else workers}
    return saved


@pytest.mark.parametrize(("algorithm", "optimizer"), list(_cases()))
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path, algorithm, optimizer):
    """Everything dies behind the checkpoint of round 2, with round 3 under way."""
    content = bundle(algorithm, f"{optimizer}{{lr=0.02,{SCHEDULE}}}")
    (tmp_path / "code").write_bytes(content)
    given = keys()
    exp = experiment(tmp_path, **given)
    with Processes() as started:
        arguments = (tmp_path, tmp_path / "code", 3, 2, json.dumps(given))
        doomed = started.start("helpers.worlds.resumed_runs", *arguments)
        assert doomed.wait(60) == -signal.SIGKILL, doomed.text
    before = [r["kind"] for r in read(tmp_path / "run" / "ledger.jsonl")[0]]
    assert "end" not in before
    alone = algorithm == "snoo"
    resumed = _finished(exp, tmp_path / "run", content, 3, alone=alone)
    unbroken = _finished(exp, tmp_path / "unbroken", content, 3, alone=alone)
    assert resumed.round == 5
    _same(resumed, unbroken)
    assert check(tmp_path / "run" / "ledger.jsonl").pending == 0


RESIDUAL = ("muloco{wire=2bit}", f"nesterov{{lr=0.02,{SCHEDULE}}}")


def _stopped(tmp_path, workers):
    """A run of two rounds, complete; the code, and an experiment of five rounds."""
    content = bundle(*RESIDUAL)
    short = experiment(tmp_path, **keys(outer_loop_steps=2))
    saved = _finished(short, tmp_path / "run", content, workers)
    assert len(saved.private) == workers
    return content, experiment(tmp_path, **keys()), saved


def test_a_worker_that_comes_late_finds_what_was_its_own(tmp_path):
    """It comes when the first one has its state back: a holder, but not of that."""
    content, exp, _ = _stopped(tmp_path, 2)

    def between(crew):
        crew.wait(lambda: crew.shepherd.roster.holders(2))

    resumed = _finished(exp, tmp_path / "run", content, 2, between=between)
    unbroken = _finished(exp, tmp_path / "unbroken", content, 2)
    _same(resumed, unbroken)


def _noting(states: list):
    """Loads a trainer that notes what is its own each time that it took a state."""

    def loaded(content):
        trainer = load_bundle(content)
        restore = trainer.restore

        def noted(snapshot, index):
            restore(snapshot, index)
            states.append(dict(trainer.private))

        trainer.restore = noted
        return trainer

    return loaded


@pytest.mark.parametrize(
    ("before", "after"), [(3, 2), *(pytest.param(*c, marks=SLOW) for c in CHANGES)]
)
def test_other_numbers_of_workers_share_out_what_was_not_sent(tmp_path, before, after):
    """Through the shepherd: what the workers begin with adds up to what was saved."""
    content, exp, saved = _stopped(tmp_path, before)
    restored: list[list] = [[] for _ in range(after)]
    loaders = [_noting(states) for states in restored]
    crew = Crew(exp, tmp_path / "run", content, after, loaders, shepherd=Hasty)
    found = crew.finish()
    assert found.round == 5
    assert len(found.private) == after
    assert any(f"shared out among {after}" in line for line in crew.watcher.lines)
    begun = [states[-1] for states in restored]
    for name in saved.private[0]:
        sums = [
            np.sum([own[name].astype(np.float64) for own in group], axis=0)
            for group in (saved.private, begun)
        ]
        assert np.abs(sums[0]).max() > 0
        np.testing.assert_allclose(*sums, rtol=0, atol=1e-6)
    assert check(tmp_path / "run" / "ledger.jsonl").pending == 0


def test_a_worker_takes_another_program_with_all_that_it_holds(tmp_path):
    """As when a shepherd comes back with another learning rate."""
    content, _, saved = _stopped(tmp_path, 2)
    first, second = load_bundle(content), load_bundle(content)
    state = WorkerState()
    state.load(first)
    first.restore(snapshot_of(saved), 1)
    state.hold(2)
    state.exchange(second)
    assert state.trainer is second
    assert state.committed == 2
    assert safetensors_io.digest(second.shared) == saved.info["digest"]
    mine = (second.private, saved.private[1]), (second.inner(), saved.workers[1])
    for found, wanted in mine:
        assert safetensors_io.digest(found) == safetensors_io.digest(wanted)
    second.close()
