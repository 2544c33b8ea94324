"""What a run shows: lines, a table, a picture, and W&B."""

import doctest
import io
import re
import struct
import sys
import types
from dataclasses import replace
from importlib import import_module

import pytest
from helpers.oracles.round_metrics import record
from helpers.worlds.training_runs import experiment

from pcp.errors import MissingPackage
from pcp.training.observe import dashboard as dashboard_module
from pcp.training.observe.dashboard import Dashboard, PlainLog, sparkline
from pcp.training.observe.metrics import ObserverFanout
from pcp.training.observe.plot import plot_losses
from pcp.training.observe.tensorboard import TensorBoard
from pcp.training.observe.wandb import WandbRun

STATUS = {
    "run": "runs/x",
    "round": 2,
    "workers": [
        {
            "index": 0,
            "address": "10.0.0.7:4411",
            "target": "cpu",
            "device": "local-task",
            "state": "ready",
            "round": 2,
            "silent_seconds": 0.1,
        }
    ],
}


def test_plain_lines_say_what_matters():
    lines = []
    log = PlainLog(10, lines.append)
    log.round(record(3, 2.5))
    log.validation(3, 2.25, 11)
    assert "round 3/10  loss 2.5000  500 tokens/s  2 workers  2.00 MB sent" in lines[0]
    assert "round 3: validation loss 2.2500 (11 batches)" in lines[1]
    log.round(replace(record(3, 2.5), workers=1))
    assert "  1 worker  " in lines[2]


def test_the_examples() -> None:
    assert doctest.testmod(dashboard_module).failed == 0


def test_the_table_shows_the_newest_state():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    dashboard = Dashboard(10, console)
    try:
        for number in range(1, 4):
            dashboard.round(replace(record(number, 5.0 - number), seconds=3.0))
        dashboard.validation(3, 2.25, 11)
        dashboard.status(STATUS | {"saving": True})
        dashboard.log("worker 0 connected")
    finally:
        dashboard.close()
    text = io.StringIO()
    Console(file=text, width=160).print(dashboard.picture())
    for words in ("round 3/10", "loss 2.2500", "local-task", "connected", "10.0.0.7"):
        assert words in text.getvalue()
    assert "about 21 s left  saving a checkpoint" in text.getvalue()


def test_the_table_shows_the_newest_round_in_colour_too():
    """A terminal draws a bar, which a page without colour leaves out."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor"
    )
    dashboard = Dashboard(10, console)
    try:
        dashboard.round(record(3, 2.0))
        with console.capture() as drawn:
            console.print(dashboard.picture())
    finally:
        dashboard.close()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", drawn.get()).splitlines()
    (line,) = [line for line in lines if "round 3/10" in line]
    assert "tokens/s" in line
    assert "MB sent each" in line
    assert {len(line) for line in lines} == {100}


def test_a_sparkline_goes_down_when_the_loss_does():
    line = sparkline([5.0, 4.0, 3.0, 2.0])
    assert list(line) == sorted(line, reverse=True)
    assert len(sparkline([float(i) for i in range(1000)])) <= 48
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_the_plot_is_a_picture(tmp_path):
    rounds = [record(n, 5.0 - n) for n in range(1, 4)]
    path = plot_losses(rounds, {3: 2.25, 99: 1.0}, tmp_path / "loss.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


class FakeWandb(types.ModuleType):
    """Remembers what it is told."""

    def __init__(self):
        super().__init__("wandb")
        self.key, self.options, self.logged, self.finished = None, {}, [], False

    def login(self, key):
        self.key = key

    def init(self, **options):
        self.options = options
        return self

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


def test_wandb_gets_rounds_and_never_the_key(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    exp = experiment(tmp_path, wandb_api_key="secret", wandb_run_name="mine")
    run = ObserverFanout([WandbRun(exp, "secret", "run_1")])
    run.round(record(1, 3.0))
    run.validation(1, 2.0, 5)
    run.close()
    assert fake.key == "secret"
    assert "secret" not in str(fake.options)
    assert fake.options["name"] == "mine"
    assert fake.logged[0][1]["worker/1/resident_bytes"] == 100_000_000
    assert fake.logged[0][0] == 1
    assert fake.logged[0][1]["loss"] == 3.0
    assert fake.logged[1] == (1, {"validation_loss": 2.0})
    assert fake.finished


def _events(folder) -> list[tuple[int, str, float]]:
    """Step, name and value of all scalars of a folder's event files."""
    event_pb2 = import_module("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            assert data[at + 8 : at + 12] == _crc(data[at : at + 8])
            assert data[at + 12 + size :][:4] == _crc(data[at + 12 : at + 12 + size])
            if event.HasField("session_log"):
                assert event.session_log.status == event_pb2.SessionLog.START
                found += [(event.step, "start", 0.0)]
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            at += 12 + size + 4
    return found


def _crc(data: bytes) -> bytes:
    """As others compute it."""
    masked = import_module("tensorboardX.record_writer").masked_crc32c
    return struct.pack("<I", masked(data))


def test_tensorboard_reads_rounds_and_validations(tmp_path):
    pytest.importorskip("tensorboardX")
    run = ObserverFanout([TensorBoard(tmp_path, 300)])
    for number in (1, 2):
        run.round(record(number, 4.0 - number))
    run.validation(2, 1.5, 5)
    run.close()
    found = _events(tmp_path)
    assert (1, "loss", 3.0) in found
    assert (2, "loss", 2.0) in found
    assert (2, "validation_loss", 1.5) in found
    assert found[0] == (301, "start", 0.0)
    assert (1, "worker/1/resident_bytes", 100_000_000.0) in found


def test_a_key_without_the_package_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackage, match=r"pip install -e '\.\[wandb\]'"):
        WandbRun(experiment(tmp_path), "key", "run_1")
