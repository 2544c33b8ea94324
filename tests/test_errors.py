"""What errors and reports say in the same words everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
from helpers.repository.sources import ROOT, texts

from pcp import errors
from pcp.errors import MissingPackage, UsageError, counted, in_clone, install


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "worker", "0 workers"),
        (1, "worker", "1 worker"),
        (2, "process", "2 processes"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
    ],
)
def test_numbers_of_things(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said


def test_advice_to_install_names_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install() == "pip install -e . in pcp's clone"
    for extra in project["optional-dependencies"]:
        assert install(extra) == f"pip install -e '.[{extra}]' in pcp's clone"


def test_a_wheel_gets_its_extras_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an installed pcp, pip takes that one and fetches the extra alone."""
    (tmp_path / "pcp").mkdir()
    installed = tmp_path / "pcp" / "errors.py"
    assert in_clone(Path(errors.__file__))
    assert not in_clone(installed)
    monkeypatch.setattr(errors, "__file__", str(installed))
    assert install("compiler") == "pip install 'pcp-mlir[compiler]'"
    assert install() == "pip install pcp-mlir"


def test_nothing_names_the_stranger_in_the_registry() -> None:
    """`pcp` there is Performance Co-Pilot: pip would install that."""
    wrong = re.compile(r"pip install '?pcp(?![\w-])")
    assert wrong.search("pip install " + "'pcp[train]'")
    assert not wrong.search("pip install 'pcp-mlir[train]'")
    assert [path for path, text in texts() if wrong.search(text)] == []


def test_a_missing_package_is_a_usage_error_and_an_import_error() -> None:
    error = MissingPackage("x needs y")
    assert isinstance(error, UsageError)
    assert isinstance(error, ImportError)
    assert (str(error), error.exit_code) == ("x needs y", 2)
