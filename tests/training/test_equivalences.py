"""What algorithms must agree with, through compiled bundles and the real runtime.

The other tests of the table in docs/algorithms.md are beside the algorithms;
`tests/architecture/test_paths.py` holds that they are there.
"""

import signal
import time

import numpy as np
import pytest
from helpers.models.closed_form import (
    BATCH,
    BLOCK,
    batches,
    bundle,
    parameters,
    play,
    replica,
    same_bits,
)
from helpers.models.token_batches import pair, token_batch
from helpers.oracles.ledger import parts, saved_parameters, weighted_nesterov
from helpers.servers.processes import Processes
from helpers.worlds.communicators import eventually
from helpers.worlds.training_cluster import load_bundle
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    order,
    start_shepherd,
)

from pcp.runtime.communicator.communicator import Communicator
from pcp.training.data.dataset import Batch
from pcp.training.storage.ledger import check

STEPS, ROUNDS = 3, 4


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("average", "ddp", "async_local_sgd{lr=0.5,momentum=0.5,period=4}")
]


@pytest.mark.slow  # a program more
@pytest.mark.parametrize("algorithm", ["diloco{lr=0.5,momentum=0.5}", *SLOW])
def test_the_order_of_the_workers_does_not_matter(algorithm: str) -> None:
    """Bit for bit: with four workers and a linear loss every sum is exact."""
    code = bundle("linear", algorithm)
    data = [batches(STEPS * ROUNDS, worker) for worker in range(4)]
    straight = play(code, data, ROUNDS)
    turned = play(code, [data[i] for i in (2, 0, 3, 1)], ROUNDS)
    for mine, theirs in zip(straight[0], turned[0], strict=True):
        assert same_bits(mine, theirs)
    assert np.abs(parameters(straight[0][-1])).max() > 0.1


FIXED = [
    "diloco{lr=0.7,momentum=0.5}",
    "average",
    "streaming_diloco{fragments=2,wire=f32,lr=0.7,momentum=0.5}",
    "async_diloco{lr=0.5}",
    "async_local_sgd{lr=0.7,momentum=0.5,period=3}",
    "eager",
    "noloco",
]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", FIXED)
def test_equal_curvature_ends_in_the_middle(algorithm: str) -> None:
    """Quadratic losses around c_m: the fixed point is the mean of the c_m."""
    draw = np.random.default_rng(5)
    shape, rounds = (BATCH, BLOCK), 60
    constant = [
        token_batch(draw.integers(0, 128, shape), draw.integers(0, 128, shape))
        for _ in range(3)
    ]
    data = [[batch] * (STEPS * rounds) for batch in constant]
    found = play(bundle("quadratic", algorithm), data, rounds, watch=replica)
    centres = [
        np.concatenate([each.mean(0) for each in pair(b)]) / 128 for b in constant
    ]
    last = np.mean([member[-1] for member in found], axis=0)
    np.testing.assert_allclose(last, np.mean(centres, axis=0), atol=2e-3)
    # Each alone would have ended elsewhere.
    assert np.abs(centres[0] - np.mean(centres, axis=0)).max() > 0.1


def idle_after(moving: int, rounds: int, members: int) -> list[list[Batch]]:
    """Batches of which all from round `moving` on have no gradient."""
    zeros = np.zeros((BATCH, BLOCK), np.int64)
    still = token_batch(zeros, zeros)
    return [
        batches(moving * STEPS, worker) + [still] * ((rounds - moving) * STEPS)
        for worker in range(members)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_eager_replicas_come_together_when_nothing_moves(beta: float) -> None:
    """β = 0: at once, behind the round in flight; else their velocities decay by β."""
    code = bundle("linear", f"eager{{lr=0.7,momentum={beta}}}")
    found = np.array(play(code, idle_after(2, 7, 3), 7, watch=replica))
    apart = found[0] - found[1]
    assert np.abs(apart[1]).max() > 1e-3
    if beta == 0:
        np.testing.assert_allclose(apart[2:], 0.0, atol=1e-6)
        return
    moves = np.diff(apart, axis=0)[2:]  # of rounds in which nothing moves or arrives
    np.testing.assert_allclose(moves[1:], beta * moves[:-1], atol=1e-6)
    assert np.abs(moves[0]).max() > 1e-3


@pytest.mark.slow
def test_noloco_replicas_come_together_when_nothing_moves() -> None:
    """Of two workers both take the mean at once; four are drawn to the middle."""
    code = bundle("linear", "noloco")
    two = np.array(play(code, idle_after(1, 4, 2), 4, watch=replica))
    np.testing.assert_allclose(two[0], two[1], atol=1e-6)
    four = np.array(play(code, idle_after(2, 22, 4), 22, watch=replica))
    spread = np.abs(four - four.mean(0)).max(axis=(0, 2))
    assert spread[1] > 1e-3
    assert spread[-1] < 0.05 * spread[1]


@pytest.mark.slow
def test_a_killed_worker_leaves_a_run_of_the_others(tmp_path) -> None:
    """θ is that of the rounds with whoever the ledger says was in them; kill -9."""
    content = bundle("linear", "diloco{lr=0.5,momentum=0.5}").to_bytes()
    keys = {"vocabulary_size": 128, "tau": 2}
    exp = experiment(tmp_path, outer_loop_steps=1000, max_epochs=1000, **keys)
    shepherd, watcher, thread = start_shepherd(
        exp, compile_for=lambda target: content, workers=3
    )
    with Processes() as processes:
        crew = [
            processes.start(
                "helpers.worlds.bundle_worker", f"w{i}", shepherd.port, 0.05
            )
            for i in range(3)
        ]
        watcher.wait_for_round(3)
        time.sleep(0.06)
        crew[1].signal(signal.SIGKILL)
        eventually(lambda: watcher.rounds[-1].workers == 2, 30)
        watcher.wait_for_round(watcher.rounds[-1].round + 2)
        order(shepherd, "cancel")
        saved = checkpoint_of(thread.finish(60))
    ledger = shepherd.folder.ledger
    rounds = parts(ledger, exp)
    assert check(ledger).rounds == len(rounds)
    assert {len(members) for members in rounds} == {2, 3}
    wanted = weighted_nesterov(rounds, 0.5, 0.5)
    np.testing.assert_allclose(saved_parameters(saved), wanted, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_a_coder_that_loses_nothing_leaves_no_error() -> None:
    """k = all and plain values: what is kept for later stays zero."""
    code = bundle("linear", "sparseloco{k=4096,bits=32,beta=1,lr=0.5}")
    trainer, (alone,) = load_bundle(code.to_bytes()), Communicator.in_process(1)
    trainer.fresh(3)
    for number in range(3):
        trainer.join(alone)
        trainer.begin(1, 1)
        trainer.step([batches(3, 0)[number]])
        trainer.adopt(trainer.outer(1, alone))
        assert all((error == 0).all() for error in trainer.private.values())
    trainer.close()
    alone.close()
