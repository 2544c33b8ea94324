"""One run on two kinds of processor: code for any x86-64, and for exactly this one."""

from contextlib import closing

import numpy as np
import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.models.token_batches import token_batch
from helpers.servers.processes import Processes
from helpers.servers.processor_features import fused
from helpers.worlds.training_runs import checkpoint_of, start_shepherd

from pcp.bundle import Bundle
from pcp.runtime import Communicator
from pcp.tools.commands.ledger import loader
from pcp.tools.support import training_job as jobs
from pcp.training.simulate.replay import Replay
from pcp.training.storage.ledger import check, read
from pcp.training.trainer.load import load

TARGETS = ("cpu", "cpu:host", "cpu", "cpu:host")
ROUNDS = 6


def _gradient(content: bytes) -> np.ndarray:
    trainer = load(Bundle.from_bytes(content), "local-sync", None)
    draw = np.random.default_rng(0)
    ids, targets = draw.integers(0, 64, (2, trainer.batch, trainer.block))
    trainer.fresh(3)
    (alone,) = Communicator.in_process(1)
    trainer.join(alone)
    trainer.begin()
    for _ in range(20):
        trainer.step([token_batch(ids, targets, trainer.inputs)])
    state = np.array(next(iter(trainer.steps.held("param").values())))
    alone.close()
    trainer.close()
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["diloco", "ddp", "streaming_diloco{fragments=1}"]
)
def test_replicas_agree_to_the_bit_on_two_kinds_of_processor(
    tmp_path, monkeypatch, algorithm
):
    """Digests are compared in each commit, and with what all members hold behind it.

    Each target is compiled once for the run, and not again for the next one.
    """
    monkeypatch.setenv("PCP_CACHE", str(tmp_path / "cache"))
    write_experiment(
        tmp_path,
        outer_loop_steps=ROUNDS,
        checkpoint_every=1,
        algorithm=algorithm,
        checkpoint_dir=str(tmp_path / "runs"),
    )
    exp = jobs.read_experiment(str(tmp_path / "x.json"))
    asked: dict[str, bytes] = {}
    compile_for = jobs.compiler_for(exp, lambda text: None)

    def once(target: str) -> bytes:
        assert target not in asked, f"{target} is compiled twice"
        asked[target] = compile_for(target)
        return asked[target]

    shepherd, watcher, thread = start_shepherd(exp, None, once, workers=len(TARGETS))
    with Processes() as started:
        for number, target in enumerate(TARGETS):
            line = f"worker --connect 127.0.0.1:{shepherd.port} --target {target}"
            more = f"--device local-sync --name w{number} --readable {tmp_path}"
            started.start("pcp.tools.cli", *line.split(), *more.split())
        outcome = thread.finish(120)
    assert set(asked) == set(TARGETS)
    assert [r.workers for r in watcher.rounds] == [len(TARGETS)] * ROUNDS
    refused = [line for line in watcher.lines if "no checkpoint this time" in line]
    assert refused == [], "a member held another state behind a commit"
    assert checkpoint_of(outcome).round == ROUNDS
    check(shepherd.folder.ledger)
    if fused():
        one, other = (_gradient(asked[target]) for target in ("cpu", "cpu:host"))
        assert not np.array_equal(one, other), "two kinds that round alike show nothing"
    _is_made_again(shepherd.folder.ledger)
    kept = sorted((tmp_path / "cache").rglob("*"))
    assert [compile_for(target) for target in asked] == [*asked.values()]
    assert sorted((tmp_path / "cache").rglob("*")) == kept


def _is_made_again(path) -> None:
    """By a program of each kind, as recorded."""
    records = read(path)[0]
    bundles = {r["target"]: r["bundle"] for r in records if r["kind"] == "joined"}
    assert len(set(bundles.values())) == 2
    with closing(Replay(records, loader("local-sync"))) as again:
        made = list(again.rounds())
    assert [m.difference() for m in made if not m.same] == []
    assert len(made) == ROUNDS
    assert again.notes == []
