"""A run that an earlier commit made has the same digests today: old_run/README.md."""

import platform
from contextlib import closing
from pathlib import Path

import pytest

from pcp.errors import StateMismatch
from pcp.tools.commands import ledger
from pcp.training.simulate.replay import Replay
from pcp.training.storage.ledger import FILE_NAME, prove, read

FOLDER = Path(__file__).parent / "old_run"


@pytest.fixture(scope="module")
def records():
    """The ledger's lines; its model and its text lie here and not where they lay."""
    lines, _ = read(FOLDER / FILE_NAME)
    prove(lines, FOLDER / FILE_NAME)
    (started,) = (line for line in lines if line["kind"] == "started")
    for key in ("model_path", "data_path"):
        moved = FOLDER / Path(started["experiment"][key]).name
        started["experiment"][key] = str(moved)
    return lines


def _replayed(records):
    with closing(Replay(records, ledger.loader("local-sync"))) as again:
        ledger.follow(again)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is x86-64's")
def test_every_digest_is_the_recorded_one(records, capsys):
    _replayed(records)
    assert (
        "replayed 4 rounds: every digest is the recorded one" in capsys.readouterr().out
    )


@pytest.mark.slow  # two programs
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is x86-64's")
def test_another_learning_rate_is_another_run(records):
    """The digests are of what the rounds computed: the twin that bites."""
    other = [dict(line) for line in records]
    other[1]["experiment"] = {**other[1]["experiment"], "learning_rate": 0.1001}
    with pytest.raises(StateMismatch, match="round 1 differs"):
        _replayed(other)
