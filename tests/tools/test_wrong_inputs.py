"""What commands say to wrong inputs: a line with a hint, and an exit status.

`wrong_inputs.txt` has a line for each: the status, the command, and what the error
says. Nothing of a run is made, and nothing is compiled.
"""

import re
from importlib import import_module
from pathlib import Path

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.models.stablehlo_small import TANH_SUM
from helpers.repository.installation import PROJECT

TABLE = Path(__file__).with_name("wrong_inputs.txt").read_text().splitlines()
ROWS = [re.split(r"  +", line, maxsplit=2) for line in TABLE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment and a model, and files that are broken."""
    made = tmp_path_factory.mktemp("wrong")
    write_experiment(made, checkpoint_dir=str(made / "runs"))
    contents = {
        "m.mlir": TANH_SUM,
        "broken.mlir": "func.func @main(",
        "broken.json": "{",
        "broken.pcp": "PK\x03\x04 no zip file",
        "list.json": "[]",
        "demo.json": "{}",
        "c.json": "{}",
        "empty.py": "",
    }
    for name, content in contents.items():
        (made / name).write_text(content)
    return made


def test_the_table_is_long() -> None:
    assert len(ROWS) >= 90
    assert len({line for _, line, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("code", "line", "hint"), ROWS, ids=[r[1] for r in ROWS])
def test_a_wrong_input_is_told(
    code: str,
    line: str,
    hint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    name, *argv = line.split()
    module, _, function = PROJECT["scripts"][name].partition(":")
    assert getattr(import_module(module), function)(argv) == int(code)
    err = capfd.readouterr().err
    assert hint in err
    assert len(err.splitlines()) == 1, "an error is one line"
    assert "internal error" not in err
    assert not list((folder / "runs").glob("run_*")), "no run is left"
