"""`pcp init`: what it writes is what `pcp train` takes, and nothing is overwritten."""

from pathlib import Path

import pytest
from helpers.repository.sources import ROOT

from pcp.tools.cli import main
from pcp.tools.start.init import FILES
from pcp.tools.support import training_job


def test_its_folder_is_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "demo"
    assert main(["init", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"next:  pcp train {folder}/demo.json --workers 2\n" in said
    experiment = training_job.read_experiment(str(folder / "demo.json"))
    assert experiment.model_path == str(folder / "models" / "nanogpt_small.mlir")


def test_the_examples_are_the_same_files(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path)]) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (ROOT / "examples" / name).read_bytes()


def test_no_file_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.json").write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert "demo.json is there already" in capsys.readouterr().err
    assert (tmp_path / "demo.json").read_text() == "mine"
    assert not (tmp_path / "models").exists()
