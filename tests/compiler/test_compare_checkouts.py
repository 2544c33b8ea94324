"""`benchmarks/compare_checkouts.py` finds what two checkouts compile unlike."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [path.name for path in (ROOT / "pcp").iterdir() if path.is_symlink()]
TEXT = """// RUN: pcp-opt %s --pcp-strip-metadata | filecheck %s
// RUN: not pcp-opt %s --no-such-pass
func.func @main(%x: tensor<4xf32> {pcp.name = "x"}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
"""
LIT = "lit_tests/passes/strip_metadata.mlir"
SMALL = "small.mlir --target cpu --mode forward"


def checkout(folder: Path) -> Path:
    """A checkout with one lit test, whose sources are links to this one's."""
    (folder / "lit_tests/passes").mkdir(parents=True)
    (folder / LIT).write_text(TEXT)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "pcp", folder / "pcp", symlinks=True)
    for room in ROOMS:
        (folder / room).symlink_to(ROOT / room)
    return folder


def planted(folder: Path, file: str, old: str, new: str) -> None:
    """Replace text in a source of the checkout; the room is copied first."""
    room = folder / Path(file).parts[0]
    room.unlink()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / room.name, room, ignore=skip)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


def compare(old: Path, new: Path, *flags: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "benchmarks/compare_checkouts.py")]
    done = subprocess.run(
        [*command, str(old), str(new), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return checkout(tmp_path / "old"), checkout(tmp_path / "new")


@pytest.mark.slow  # two checkouts
def test_equal_checkouts_compare_equal(pair: tuple[Path, Path]) -> None:
    assert compare(*pair, "--only", LIT) == (0, "1 cases, 0 differ\n")
    assert compare(*pair, "--only", SMALL) == (0, "1 cases, 0 differ\n")


def in_a_pass(new: Path) -> None:
    planted(new, "passes/ingest/strip_metadata.py", '"pcp."', '"pcq."')


def in_a_pipeline(new: Path) -> None:
    planted(new, "compiler/pipelines.py", '_CLEAN = ("cse", ', "_CLEAN = (")


@pytest.mark.slow  # two checkouts
@pytest.mark.parametrize(
    ("plant", "case", "where"),
    [(in_a_pass, LIT, "stdout: line"), (in_a_pipeline, SMALL, "not written any more")],
)
def test_a_planted_difference_is_found(
    pair: tuple[Path, Path], plant: Callable[[Path], None], case: str, where: str
) -> None:
    old, new = pair
    plant(new)
    code, said = compare(old, new, "--only", case)
    assert code == 1
    assert f"DIFFERS {case}" in said
    assert where in said


def test_quick_cases_are_some_of_all(tmp_path: Path) -> None:
    listed = [
        compare(ROOT, ROOT, "--list", *flags)[1].splitlines()
        for flags in ([], ["--quick"])
    ]
    assert set(listed[1]) < set(listed[0])
    assert len(listed[0]) == len(set(listed[0]))
    assert {name.split()[0] for name in listed[1]} > {"nanogpt_small.mlir"}
