"""What `benchmarks/faults` says of a run is looked at, and its waits end."""

import random
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from helpers.repository.sources import ROOT

from pcp.training.storage.island_parts import joined_digest

pytest.importorskip("psutil")


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


class Still:
    """A run of one worker that holds a round, as a `faults_run.Run`."""

    def __init__(self, committed, ranks):
        self.digests = lambda: committed
        self._worker = {"address": "here"}
        if ranks:
            self._worker["ranks"] = [{"address": at} for at in ranks]

    def status(self):
        return {"workers": [self._worker]}


def _audit(monkeypatch, committed, snapshot, ranks=()):
    import faults_audit

    monkeypatch.setattr(faults_audit, "fetch_snapshot", snapshot)
    monkeypatch.setattr(
        faults_audit.safetensors_io, "digest", lambda arrays: arrays["x"]
    )
    monkeypatch.setattr(faults_audit, "shared_part", lambda arrays: arrays)
    with faults_audit.Audit(Still(committed, ranks)) as audit:
        return audit.close()


def test_an_audit_compares_at_least_once(monkeypatch):
    assert _audit(monkeypatch, {3: {"d"}}, lambda *_: (3, {"x": "d"})) == 1


@pytest.mark.parametrize("committed", [{3: {"other"}}, {}])
def test_an_audit_refuses_what_was_not_committed(monkeypatch, committed):
    with pytest.raises(AssertionError, match="round 3: another state"):
        _audit(monkeypatch, committed, lambda *_: (3, {"x": "d"}))


def test_an_audit_that_saw_nothing_proves_nothing(monkeypatch):
    with pytest.raises(AssertionError, match="no state was looked at"):
        _audit(monkeypatch, {}, lambda *_: (0, {}))


def test_an_island_is_what_its_ranks_hold_together(monkeypatch):
    """Ranks of unlike rounds are between two of them."""
    both = joined_digest(["d0", "d1"])
    held = {"0": (3, {"x": "d0"}), "1": (3, {"x": "d1"}), "2": (2, {"x": "d1"})}
    look = partial(_audit, monkeypatch, {3: {both}}, lambda at, _: held[at])
    assert look(["0", "1"]) == 1
    with pytest.raises(AssertionError, match="round 3: another state"):
        look(["1", "0"])
    with pytest.raises(AssertionError, match="no state was looked at"):
        look(["0", "2"])


def test_an_audit_that_fails_says_so(monkeypatch):
    def broken(*_):
        raise ValueError("of no tensor")

    with pytest.raises(ValueError, match="of no tensor"):
        _audit(monkeypatch, {}, broken)


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """A run whose processes are gone, and little patience."""
    import faults
    import faults_run

    for module in (faults, faults_run):
        monkeypatch.setattr(module, "END_SECONDS", 0.05)
    run = faults_run.Run.__new__(faults_run.Run)
    run.log = tmp_path / "log"
    run.log.write_text("the last words\n")
    for process in ("node", "shepherd"):
        monkeypatch.setattr(run, process, SimpleNamespace(children=list), raising=False)
    run.status = lambda: None
    return run


def test_nobody_left_to_kill_ends_a_storm_and_restarts(dead):
    import faults
    import faults_run

    injector = faults_run.Injector(dead, random.Random(0), Counter())
    with pytest.raises(SystemExit, match="the last words"):
        injector.strike("worker")
    with pytest.raises(SystemExit, match="the last words"):
        faults._settled(dead, faults_run.Slots(dead.node))


@pytest.mark.parametrize(
    ("late", "grown"),
    [
        ((102.9, 40, 10, 8), []),
        ((103.1, 40, 10, 8), ["RSS, MB"]),
        ((100.0, 41, 11, 9), ["files", "sockets", "threads"]),
        ((90.0, 39, 9, 7), []),
    ],
)
def test_bytes_may_vary_and_nothing_else(late, grown):
    import faults

    early = (100.0, 40, 10, 8)
    assert faults._growth("worker", [early] * 6 + [late] * 2) == grown


def test_a_folder_is_gone_after_its_processes(tmp_path, monkeypatch):
    """And kept where the run failed; the processes are ended once."""
    import faults_run

    closed = []

    class Started:
        def __init__(self, folder, workers, spares):
            self.folder = folder

        def wait(self, *_):
            """It trains."""

        def full(self, _):
            """Never asked."""

        def close(self):
            closed.append(self.folder.exists())

    monkeypatch.setattr(faults_run, "Run", Started)
    monkeypatch.setattr(faults_run.tempfile, "mkdtemp", lambda **_: str(tmp_path / "x"))
    with faults_run.started(1) as run:
        pass
    assert (closed, run.folder.exists()) == ([True], False)
    with pytest.raises(ValueError, match="what went wrong"):
        with faults_run.started(1) as run:
            raise ValueError("what went wrong")
    assert (closed, run.folder.exists()) == ([True, True], True)
