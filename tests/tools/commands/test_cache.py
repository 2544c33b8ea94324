"""`pcp cache`: what it lists is there, and what it removes is not."""

import os
from pathlib import Path

import pytest

from pcp.compiler.cache import Cache
from pcp.tools.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two modules, of which `old` was used long ago."""
    cache = Cache(tmp_path)
    for name in ("old", "new"):
        cache.put(name * 10, b"x" * 1000)
    os.utime(tmp_path / "ol" / ("old" * 10 + ".vmfb"), (1, 1))
    return tmp_path


def test_modules_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--cache", str(folder)]) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    assert [row.split()[-1] for row in rows] == [("old" * 10)[:16], ("new" * 10)[:16]]
    assert total.startswith("2 modules, 0 bundles, 2,130 bytes in ")


@pytest.mark.parametrize(
    ("keep", "left"), [("2KiB", ["new"]), ("1MiB", ["new", "old"])]
)
def test_the_oldest_go(folder: Path, keep: str, left: list[str]) -> None:
    assert main(["cache", "prune", "--keep", keep, "--cache", str(folder)]) == 0
    assert sorted(p.stem[:3] for p in folder.glob("*/*.vmfb")) == left


def test_all_go(folder: Path) -> None:
    assert main(["cache", "prune", "--cache", str(folder)]) == 0
    assert Cache(folder).entries() == []
