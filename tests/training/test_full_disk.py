"""Trouble with the disk: a run waits for room, and notices that its folder is gone."""

import errno
import shutil

import pytest
from helpers.worlds.training_runs import (
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.errors import RuntimeFault
from pcp.training.observe.metrics import MetricsFile, read
from pcp.training.storage import append_log
from pcp.training.storage import ledger as ledgers
from pcp.training.storage.run_folder import RunFolder


class Disk:
    """Has no room while it is `full`, but for a part of what is written."""

    def __init__(self, monkeypatch) -> None:
        self.full, self.refused, self._real = False, 0, append_log._write
        monkeypatch.setattr(append_log, "_write", self.write)

    def write(self, file, content):
        """As the real one, or half of it and an error."""
        if not self.full:
            self._real(file, content)
            return
        self._real(file, content[: len(content) // 2])
        self.refused += 1
        if self.refused > 6:
            self.full = False
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_no_round_and_no_worker(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    exp = experiment(tmp_path, outer_loop_steps=6, checkpoint_every=100)
    folder = RunFolder.at(tmp_path / "run", exp)
    shepherd, watcher, thread = start_shepherd(exp, folder, workers=2)
    metrics = MetricsFile(folder.metrics, watcher.lines.append)
    monkeypatch.setattr(watcher, "keep", metrics.keep)
    crew = [start_worker(shepherd.port, f"w{i}", 0.02) for i in range(2)]
    watcher.wait_for_round(2)
    disk.full = True
    assert thread.finish(60).rounds == 6
    assert [worker.finish(10) for worker in crew] == ["the run is complete"] * 2
    metrics.close()
    assert disk.refused > 6
    assert [record.workers for record in watcher.rounds] == [2] * 6
    said = "\n".join(watcher.lines)
    assert "the run waits for room on the disk" in said
    assert "there is room on the disk again" in said
    assert ledgers.check(folder.ledger).rounds == 6
    assert read(folder.metrics)[0][-1].round == 6


def test_a_deleted_folder_is_noticed_at_the_next_commit(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=400, checkpoint_every=10**6)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    start_worker(shepherd.port, "w", 0.01)
    watcher.wait_for_round(2)
    shutil.rmtree(shepherd.folder.path)
    with pytest.raises(RuntimeFault, match="the ledger was deleted while the run"):
        thread.finish()
    assert watcher.rounds[-1].round < 400
