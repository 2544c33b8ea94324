"""What is known of committed rounds, in memory and from the ledger's file."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import merged, size
from pcp.training.storage import ledger as ledgers
from pcp.training.storage.ledger import Ledger, check, read
from pcp.training.storage.ledger_history import History


def _history(rounds: int) -> History:
    history = History()
    for number in range(1, rounds + 1):
        history.add(number, [(10 * number, 10 * number + 5)], f"d{number}")
    return history


@given(st.integers(0, 60), st.integers(1, 10), st.data())
def test_a_short_history_says_what_the_whole_one_does(rounds, kept, data):
    whole, short = _history(rounds), History()
    for number, made in whole.rounds.items():
        short.add(number, made.consumed, made.digest)
        short.shorten(kept)
        assert len(short.rounds) <= 2 * kept
    assert merged(short.used()) == merged(whole.used())
    assert all(short.digest(n) == whole.digest(n) for n in short.rounds)
    back = data.draw(st.integers(short.since, rounds))
    for history in (whole, short):
        history.back_to(back)
    assert merged(short.used()) == merged(whole.used())
    assert short.digest(back + 1) is None


def test_what_is_only_known_as_a_sum_cannot_be_undone():
    history = _history(9)
    history.shorten(2)
    assert (history.since, sorted(history.rounds)) == (7, [8, 9])
    with pytest.raises(StateMismatch, match="up to 7 are not known one by one"):
        history.back_to(6)


def test_a_ledger_looks_up_in_its_file_what_it_has_forgotten(tmp_path, monkeypatch):
    """A run of 40 rounds goes back to its third: as if all were in memory."""
    monkeypatch.setattr(ledgers, "KEPT_ROUNDS", 4)
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as ledger:
        ledger.append("begin", samples_per_epoch=400, total=1000, quantum=10)
        for number in range(1, 41):
            _make(ledger, number, f"d{number}")
            assert len(ledger.progress.history.rounds) <= 8
    with closing(Ledger(path)) as ledger:
        progress = ledger.progress
        assert progress.history.since >= 32
        assert [ledger.digests(n) for n in (1, 40, 41)] == [("d1",), ("d40",), ()]
        ledger.append("rewind", to=3, reason="state lost")
        assert ledger.progress is progress  # others hold it
        assert (progress.committed, progress.digest) == (3, "d3")
        assert size(progress.taken()) == 30
        assert ledger.digests(4) == ()
        _make(ledger, 4, "d4 again")
        assert ledger.digests(4) == ("d4 again",)
    assert check(path).consumed == 40
    assert read(path)[0][-1]["digest"] == "d4 again"


def test_a_run_goes_back_to_the_last_round_that_is_only_a_sum(tmp_path, monkeypatch):
    """Its digest is in the file alone, and is what workers are compared with."""
    monkeypatch.setattr(ledgers, "KEPT_ROUNDS", 2)
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        ledger.append("begin", samples_per_epoch=400)
        for number in range(1, 6):
            _make(ledger, number, f"d{number}")
        since = ledger.progress.history.since
        assert since == 3
        ledger.append("rewind", to=since, reason="state lost")
        assert (ledger.progress.digest,) == ledger.digests(since) == ("d3",)


def _make(ledger: Ledger, number: int, digest: str) -> None:
    lease = {"a": [(10 * (number - 1), 10 * number)]}
    ledger.append("round", round=number, epoch=1, leases=lease)
    ledger.append("commit", round=number, epoch=1, digest=digest, consumed=lease)
