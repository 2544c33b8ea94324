"""A checkpoint of N workers loaded by M: what must add up does."""

import threading
from importlib import import_module

import numpy as np
import pytest
from helpers.models.closed_form import BLOCK, bundle

from pcp.errors import StateMismatch
from pcp.passes.training.outer import spec as specs
from pcp.runtime.communicator.communicator import Communicator
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.checkpoint_resharding import RULES, rejoining, reshard
from pcp.training.storage.snapshots import snapshot_of
from pcp.training.storage.state_names import prefixed
from pcp.training.trainer.load import load

CHANGES = [(1, 2), (3, 2), (2, 3), (4, 1)]
OWN = ("error", "residue", "delta", "replica", "local", "momentum", "velocity")


def saved(workers: int) -> Checkpoint:
    """Random state of each kind, with weights that differ."""
    draw = np.random.default_rng(workers)

    def tensor() -> np.ndarray:
        return draw.standard_normal((3, 5)).astype(np.float32)

    private = [{f"{kind}.w": tensor() for kind in OWN} for _ in range(workers)]
    for own in private:
        own["weight"] = np.array(draw.integers(0, 99), np.float32)
    inner = [{"m.w": tensor(), "step": np.array(7, np.int32)} for _ in private]
    return Checkpoint(4, {"w": tensor()}, {}, inner, private, info={"digest": "d"})


def gathered(checkpoint: Checkpoint, name: str) -> np.ndarray:
    return np.array([own[name] for own in checkpoint.private], np.float64)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_must_add_up_does(before, after):
    old = saved(before)
    new = reshard(old, after)
    assert len(new.private) == len(new.workers) == after
    assert (new.round, new.parameters, new.info) == (4, old.parameters, old.info)
    for name in ("error.w", "residue.w"):
        sums = gathered(old, name).sum(0), gathered(new, name).sum(0)
        np.testing.assert_allclose(*sums, rtol=0, atol=1e-6)
    for name in ("replica.w", "local.w", "momentum.w", "velocity.w"):
        mean = gathered(old, name).mean(0)
        for own in gathered(new, name):
            np.testing.assert_allclose(own, mean, rtol=0, atol=1e-6)
    weights = gathered(old, "weight"), gathered(new, "weight")
    assert weights[0].sum() == pytest.approx(weights[1].sum(), rel=1e-6)
    flying = [
        np.tensordot(w, gathered(c, "delta.w"), 1) / w.sum()
        for w, c in zip(weights, (old, new), strict=True)
    ]
    np.testing.assert_allclose(*flying, rtol=0, atol=1e-6)


def test_who_stays_keeps_its_residual_and_a_newcomer_has_none():
    old = saved(3)
    for workers in (2, 4):
        new = reshard(old, workers)
        for rank in range(workers):
            mine = new.private[rank]["error.w"]
            if rank == 0 and workers == 2:
                both = old.private[0]["error.w"] + old.private[2]["error.w"]
                np.testing.assert_allclose(mine, both, atol=1e-6)
            elif rank < 3:
                np.testing.assert_array_equal(mine, old.private[rank]["error.w"])
            else:
                assert not mine.any()
            inner = new.workers[rank]["m.w"]
            np.testing.assert_array_equal(inner, old.workers[rank % 3]["m.w"])


def test_as_many_as_saved_it_get_it_as_it_was():
    old = saved(3)
    assert reshard(old, 3) is old
    first = Checkpoint(0, {}, {})
    assert reshard(first, 3) is first


def test_what_is_in_flight_may_be_nothing():
    old = saved(2)
    for own in old.private:
        own["weight"] = np.zeros((), np.float32)
    new = reshard(old, 3)
    assert not gathered(new, "weight").any()
    assert not gathered(new, "delta.w").any()


def test_a_kind_without_a_rule_is_refused():
    old = saved(3)
    for own in old.private:
        own["secret.w"] = own["error.w"]
    with pytest.raises(StateMismatch, match=r"secret\.w: no rule .* resume with 3"):
        reshard(old, 2)
    assert reshard(old, 3) is old
    del old.private[0]["secret.w"]
    with pytest.raises(StateMismatch, match="different kinds"):
        reshard(old, 2)


def test_every_algorithm_has_rules_for_what_is_a_workers_own():
    kinds = set()
    for kind, spec in specs.KINDS.items():
        rule = import_module(f"pcp.passes.training.outer.{kind}").RULE
        slots = rule.state(spec()) if rule.state else ()
        kinds |= {slot.name for slot in slots if slot.private}
    assert {"error", "residue", "delta", "weight", "momentum", "velocity"} == kinds
    assert kinds <= set(RULES)


def test_who_comes_back_keeps_its_inner_state_and_what_it_has_not_sent():
    held, fetched = saved(2), saved(3)
    mine = prefixed("inner/0/", [*held.workers[1]], held.workers[1].values())
    mine |= prefixed("private/own/", [*held.private[1]], held.private[1].values())
    theirs = {"parameter/w": fetched.parameters["w"]}
    inner = fetched.workers[0]
    theirs |= prefixed("inner/0/", [*inner], inner.values())
    found = rejoining(theirs, mine, 5)
    unsent = {"private/5/error.w", "private/5/residue.w"}
    assert set(found) == {"parameter/w", "inner/0/m.w", "inner/0/step", *unsent}
    assert found["inner/0/m.w"] is held.workers[1]["m.w"]
    assert found["private/5/error.w"] is held.private[1]["error.w"]
    alone = rejoining(theirs, {}, 5)  # where it has no state of its own
    assert alone == theirs


def flying(number: int) -> dict[str, np.ndarray]:
    """A delta in flight and its tokens."""
    draw = np.random.default_rng(number)
    names = ("delta.h.0.w", "delta.h.1.v")
    deltas = {name: draw.standard_normal(BLOCK).astype(np.float32) for name in names}
    return deltas | {"weight": np.array(100 + 50 * number, np.float32)}


@pytest.mark.slow
def test_deltas_in_flight_arrive_whatever_the_number_of_workers():
    """The compiled step after the reload: the same parameters for 1, 2, 3 and 4."""
    code = bundle("quadratic", "async_diloco{lr=0.5,momentum=0.9}")
    found = {count: after_a_step(code, count) for count in (1, 2, 3, 4)}
    weights = np.array([flying(m)["weight"] for m in range(3)], np.float64)
    for name, array in found[3].items():
        deltas = [flying(m)[f"delta.{name}"] for m in range(3)]
        mean = np.average(np.array(deltas, np.float64), axis=0, weights=weights)
        assert np.abs(array - (1.0 - 0.5 * 1.9 * mean)).max() < 1e-5
        for other in found.values():
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-6)


def after_a_step(code, count: int) -> dict[str, np.ndarray]:
    """Parameters (they are ones) after an outer step of `count` workers.

    They load what three saved.
    """
    ones = {name: np.ones(BLOCK, np.float32) for name in ("h.0.w", "h.1.v")}
    old = Checkpoint(4, ones, {}, [{}] * 3, [flying(m) for m in range(3)])
    snapshot = snapshot_of(reshard(old, count))
    group = Communicator.in_process(count, timeout=30)
    found = [{} for _ in range(count)]

    def work(rank: int) -> None:
        trainer = load(code, "local-sync", None)
        try:
            trainer.restore(snapshot, rank)
            trainer.join(group[rank])
            trainer.begin()
            found[rank] = trainer.outer(1, group[rank])
        finally:
            group[rank].close()
            trainer.close()

    threads = [threading.Thread(target=work, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return {name: found[0][f"parameter/{name}"] for name in ones}
