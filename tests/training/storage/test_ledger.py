"""The ledger: what is on disk counts, and it adds up."""

import errno
import json
import os
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.errors import ConfigError, RuntimeFault, StateMismatch
from pcp.training.data.lease_pool import LeasePool, size
from pcp.training.storage import append_log
from pcp.training.storage import ledger as ledgers
from pcp.training.storage.ledger import Ledger, _line, check, last_hash, read


def _begin(ledger: Ledger, total: int = 1000, quantum: int = 10) -> LeasePool:
    ledger.append("begin", samples_per_epoch=400, total=total, quantum=quantum)
    return LeasePool(total, quantum)


def _round(ledger: Ledger, pool: LeasePool, workers, dies=()) -> None:
    """One round in which the workers `dies` die after the leases were given out."""
    number = ledger.progress.committed + 1
    leases = {name: pool.take(1) for name in workers}
    ledger.append("round", round=number, epoch=ledger.progress.epoch + 1, leases=leases)
    for name in dies:
        ledger.append("returned", worker=name, round=number)
        pool.give_back(leases.pop(name))
    ledger.append("commit", round=number, digest=f"d{number}", consumed=leases)


def test_replay_gives_the_state_back(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    pool = _begin(ledger)
    _round(ledger, pool, ["a", "b"])
    _round(ledger, pool, ["a", "b", "c"], dies=["b"])
    before = ledger.progress
    ledger.close()
    again = Ledger(path)
    assert again.progress == before
    assert (again.progress.committed, again.progress.digest) == (2, "d2")
    assert LeasePool(1000, 10, again.progress.taken()).take(1) == [(30, 40)]
    again.close()


@settings(max_examples=50)
@given(st.data())
def test_any_history_of_deaths_and_restarts_adds_up(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with closing(Ledger(path)) as ledger:
        _begin(ledger)
    consumed = 0
    for _ in range(data.draw(st.integers(1, 6))):
        with closing(Ledger(path)) as ledger:  # the shepherd restarts each time
            pool = LeasePool(1000, 10, ledger.progress.taken())
            for _ in range(data.draw(st.integers(1, 3))):
                workers = data.draw(st.sets(st.sampled_from("abcd"), min_size=1))
                dies = data.draw(st.sets(st.sampled_from(sorted(workers))))
                _round(ledger, pool, sorted(workers), sorted(dies - {min(workers)}))
            if data.draw(st.integers(0, 4)) == 0:
                ledger.append("rewind", to=ledger.progress.committed // 2)
            consumed = size(ledger.progress.history.used())
    report = check(path)
    assert report.consumed == consumed == sum(report.epochs)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_dropped(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    pool = _begin(ledger)
    _round(ledger, pool, ["a"])
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Ledger(path)
    assert again.progress.committed == 0
    assert again.progress.outstanding == {"a": [(0, 10)]}
    again.append("commit", round=1, digest="d1", consumed={"a": [(0, 10)]})
    again.close()
    assert path.read_bytes() == whole
    assert check(path).consumed == 10


def test_a_damaged_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    pool = _begin(ledger)
    _round(ledger, pool, ["a"])
    ledger.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"a"', b'"b"')
    path.write_bytes(b"".join(lines))
    with pytest.raises(StateMismatch, match=r"ledger.jsonl:2: damaged line"):
        Ledger(path)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    with pytest.raises(StateMismatch, match=r"ledger.jsonl:2: damaged line"):
        read(path)


ROUND = {"kind": "round", "round": 1, "epoch": 1, "leases": {"a": [(0, 10)]}}
COMMIT = {"kind": "commit", "round": 1, "digest": "d", "consumed": {"a": [(0, 10)]}}


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([ROUND | {"leases": {"a": [(0, 10)], "b": [(5, 9)]}}], "given out twice"),
        ([ROUND, COMMIT | {"consumed": {}}], "consumed other samples"),
        ([ROUND, COMMIT | {"consumed": {"a": [(0, 5)]}}], "consumed other samples"),
        (
            [ROUND, COMMIT, ROUND | {"round": 2, "epoch": 2}],
            r"samples \(0, 10\) were given out twice",
        ),
        ([ROUND | {"round": 2}], "round 2 of epoch 1 after round 0"),
        ([ROUND, COMMIT | {"round": 2}], "commit of round 2 after 0"),
        (
            [ROUND, ROUND | {"epoch": 2, "leases": {"a": [(0, 20)]}}],
            "lease of a changed",
        ),
        ([{"kind": "returned", "worker": "a"}], "returned no lease"),
        ([{"kind": "nonsense"}], "unknown record"),
    ],
)
def test_what_cannot_be_is_refused(records, what):
    replay = ledgers.LedgerReplay()
    for record in records[:-1]:
        replay.apply(record)
    with pytest.raises(StateMismatch, match=what):
        replay.apply(records[-1])


def test_a_new_ledger_has_a_name_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(ledgers, "sync_folder", synced.append)
    path = tmp_path / "runs" / "x" / "ledger.jsonl"
    for _ in range(2):
        Ledger(path).close()
    assert synced == [tmp_path / "runs" / "x", tmp_path / "runs"]


def test_one_process_at_a_time_has_a_ledger_open(tmp_path):
    path = tmp_path / "run" / "ledger.jsonl"
    with closing(Ledger(path)) as ledger:
        _begin(ledger)
        with pytest.raises(ConfigError, match="another shepherd goes on with this run"):
            Ledger(path)
        _round(ledger, LeasePool(1000, 10), ["a"])
        assert check(path).rounds == 1  # reading is for everybody
    Ledger(path).close()


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"

    def half(file, content):
        file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(Ledger(path)) as ledger:
        pool = _begin(ledger)
        _round(ledger, pool, ["a", "b"])
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(append_log, "_write", half)
            with pytest.raises(RuntimeFault, match=r"No space left .* make room"):
                ledger.append("order", action="pause")
        # What was refused is in the memory alone: no line may build on it.
        with pytest.raises(RuntimeFault, match="the ledger is closed"):
            ledger.append("checkpoint", round=1, path="x", members=["a"])
    assert path.read_bytes() == before
    with closing(Ledger(path)) as again:
        assert again.progress.committed == 1
        assert not again.progress.paused
        _round(again, LeasePool(1000, 10, again.progress.taken()), ["a"])


def test_a_ledger_that_cannot_be_read_says_so(tmp_path):
    folder = tmp_path / "ledger.jsonl"
    folder.mkdir()
    with pytest.raises(ConfigError, match="cannot open the ledger: Is a directory"):
        Ledger(folder)
    with pytest.raises(ConfigError, match="cannot read the ledger: it is no regular"):
        check(folder)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="the run's folder must be writable"):
        Ledger(file / "ledger.jsonl")


def test_a_line_that_was_changed_with_its_checksum_is_found(tmp_path):
    """The checksum is for torn lines; who forges one must forge all that follow."""
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.append("begin", run="x", samples_per_epoch=10)
    for action in ("pause", "resume", "pause"):
        book.append("order", action=action)
    book.close()
    whole, end = path.read_bytes().splitlines(keepends=True), last_hash(path)
    record = json.loads(whole[1])
    record.pop("crc")
    forged = _line(record | {"action": "resume"})
    path.write_bytes(b"".join([whole[0], forged, *whole[2:]]))
    with pytest.raises(StateMismatch, match=r":3: this line does not follow the one"):
        read(path)
    path.write_bytes(b"".join([whole[0], *whole[2:]]))
    with pytest.raises(StateMismatch):
        read(path)
    path.write_bytes(b"".join(whole[:-1]))
    assert last_hash(path) != end


def test_a_ledger_of_an_older_pcp_is_gone_on_with(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(
        _line({"n": 0, "kind": "begin", "run": "x", "samples_per_epoch": 10})
    )
    book = Ledger(path)
    book.append("order", action="pause")
    book.close()
    assert [record["kind"] for record in read(path)[0]] == ["begin", "order"]
