"""Completion: what a shell offers after some words."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pcp.tools.cli import COMMANDS, main
from pcp.tools.start.completion import words_of_all


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "pcp.bash"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda text, **_: lines.append(text))
        assert main(["completion", "bash"]) == 0
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tra", ["train"]),
        ("train --wor", ["--workers"]),
        ("control pa", ["pause"]),
        ("doctor --for s", ["shepherd"]),
        ("launch --on k", ["kubernetes"]),
        ("train exper", ["experiment.json"]),
    ],
)
def test_bash_offers(
    script: Path, words: str, offered: list[str], tmp_path: Path
) -> None:
    (tmp_path / "experiment.json").touch()
    last = len(words.split())
    asked = f"COMP_WORDS=(pcp {words}); COMP_CWORD={last}; _pcp; "
    code = f'source "$0"; {asked} echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", code, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.split() == offered, done.stderr


def test_every_command_is_known() -> None:
    known = words_of_all()
    assert known.keys() == COMMANDS.keys()
    assert all("--help" in words.flags for words in known.values())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_it(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "kubernetes" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        words = [shell, "-n", str(tmp_path / "script")]
        subprocess.run(words, check=True, timeout=30)
