"""`pcp train --detach`: the run goes on, and one is told where."""

from pathlib import Path

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.worlds.communicators import eventually

from pcp.tools.cli import main
from pcp.tools.support.detached import _without
from pcp.training.observe.past_run import COMPLETE, PastRun


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=2, max_epochs=1)
    return ["train", "x.json", "--workers", "1", "--web", "off", "--detach"]


@pytest.mark.slow
def test_a_run_goes_on_alone(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--run", "here", "--set", "outer_loop_steps=3"]) == 0
    assert "watch it:  pcp attach" in capsys.readouterr().out
    assert main(["attach", "here"]) == 0
    assert capsys.readouterr().out.endswith("complete: 3 of 3 rounds\n")
    assert PastRun.read("here").phase == COMPLETE
    output = tmp_path / "here" / "train.log"
    eventually(lambda: "final loss" in output.read_text(), 120)


def test_what_is_wrong_is_told_here(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.mlir").write_text("func.func @main(")
    assert main([*words, "--run", "here"]) == 1
    assert "it ended before it trained: " in capsys.readouterr().err


def test_the_words_of_the_second_command() -> None:
    given = "x.json --detach --run here --resume --workers 2 --run=there".split()
    assert _without(given) == ["x.json", "--workers", "2"]
