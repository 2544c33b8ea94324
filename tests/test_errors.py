"""What errors and reports say in the same words everywhere."""

import tomllib

import pytest
from helpers.repository import ROOT, texts

from pcp.errors import counted, install


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


def test_nothing_names_the_stranger_in_the_registry() -> None:
    wrong = "pip install " + "'pcp["
    assert [path for path, text in texts() if wrong in text] == []
