"""Workers that compute what is wrong, among others: the run is right, and goes on."""

import numpy as np
import pytest
from helpers.models.bigram_numpy import BigramTrainer
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.training.storage.ledger import check, read
from pcp.training.storage.run_folder import RunFolder


class Wrong(BigramTrainer):
    """Counts its outer steps; `spoil` changes what one comes to."""

    made = 0

    def outer(self, tokens, communicator):
        self.made += 1
        return self.spoil(super().outer(tokens, communicator), communicator.rank)

    def spoil(self, new, rank):
        raise NotImplementedError


class FlipsABit(Wrong):
    """One bit of its result, in every tenth round."""

    def spoil(self, new, rank):
        if self.made % 10 == 0:
            table = new["parameter/table"]
            table.view(np.uint32)[3, 5] ^= 1 << 21
        return new


class Zeros(Wrong):
    """Nothing but zeros is its result in round 3."""

    def spoil(self, new, rank):
        return {k: np.zeros_like(a) for k, a in new.items()} if self.made == 3 else new


class NoNumbers(Wrong):
    """Its result in round 3 has no number in it."""

    def spoil(self, new, rank):
        if self.made != 3:
            return new
        return {k: np.full_like(a, np.nan) for k, a in new.items()}


class HugeChange(BigramTrainer):
    """The last step of its twelfth round goes far off."""

    made = 0

    def step(self, batches):
        losses, self.made = super().step(batches), self.made + 1
        if self.made == 12 * 4:
            self.local = self.local * np.float32(1e6)
        return losses


def a_run(folder, liar, rounds, name="b", workers=3):
    """A run of `workers`, of which the one of this name is a `liar`."""
    folder.mkdir()
    exp = experiment(folder, outer_loop_steps=rounds, checkpoint_every=100)
    shepherd, watcher, thread = start_shepherd(
        exp, RunFolder.at(folder / "run", exp), workers=workers
    )
    crew = []
    for index, own in enumerate("abc"[:workers]):
        trainer = liar if own == name else BigramTrainer
        crew.append(start_worker(shepherd.port, own, trainer=trainer))
        while len(shepherd.roster) <= index:  # the index of a worker is its place
            thread.join(0.005)
            assert thread.is_alive()
    outcome = thread.finish(60)
    for worker in crew:
        worker.join(30)
    check(shepherd.folder.ledger)
    lines = read(shepherd.folder.ledger)[0]
    digests = [line["digest"] for line in lines if line["kind"] == "commit"]
    assert len(digests) == rounds
    return digests, watcher, checkpoint_of(outcome)


def test_flipped_bits_of_a_result_leave_no_trace(tmp_path):
    right, _, saved = a_run(tmp_path / "right", BigramTrainer, 21)
    found, watcher, again = a_run(tmp_path / "wrong", FlipsABit, 21)
    assert found == right
    wrong = [line for line in watcher.lines if "prepared another state" in line]
    assert len(wrong) == 2
    assert all("(b)" in line for line in wrong)
    for mine, theirs in zip(saved.workers, again.workers, strict=True):
        for name, array in mine.items():
            np.testing.assert_array_equal(array, theirs[name])


@pytest.mark.slow
def test_a_hundred_rounds_with_a_bit_flipped_in_every_tenth(tmp_path):
    """The same for longer; of the state machine alone there is a fast test."""
    right, _, _ = a_run(tmp_path / "right", BigramTrainer, 100)
    found, watcher, _ = a_run(tmp_path / "wrong", FlipsABit, 100)
    assert found == right
    wrong = [line for line in watcher.lines if "prepared another state" in line]
    assert len(wrong) == 10
    assert all("(b)" in line for line in wrong)


@pytest.mark.parametrize("name", ["a", "b"])  # rank 0, and another
def test_a_result_without_numbers_is_its_members_alone(tmp_path, name):
    right, _, _ = a_run(tmp_path / "right", BigramTrainer, 5)
    found, watcher, _ = a_run(tmp_path / "wrong", NoNumbers, 5, name=name)
    assert found == right
    wrong = [line for line in watcher.lines if "prepared another state" in line]
    assert [f"({name})" in line for line in wrong] == [True]


def test_zeros_from_rank_0_are_taken_by_nobody(tmp_path):
    right, _, _ = a_run(tmp_path / "right", BigramTrainer, 5)
    found, watcher, _ = a_run(tmp_path / "wrong", Zeros, 5, name="a")
    assert found == right
    assert any("(a): it prepared another state" in line for line in watcher.lines)


def test_a_change_that_is_far_too_large_is_left_out(tmp_path):
    _, watcher, saved = a_run(tmp_path / "wrong", HugeChange, 14)
    assert [record.workers for record in watcher.rounds][10:] == [3, 2, 3, 3]
    out = "(b) is left out of round 12: the norm of its change a step"
    assert any(out in line for line in watcher.lines)
    assert np.abs(saved.parameters["table"]).max() < 1e3
