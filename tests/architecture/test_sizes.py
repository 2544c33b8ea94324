"""How long a file is: 450 lines at the most."""

import pytest
from helpers.repository.sources import ROOT, texts

MOST = 450


def longer(lines: dict[str, int], most: int) -> set[str]:
    """The files of more lines than that."""
    return {name for name, count in lines.items() if count > most}


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    """The lines of every Python file of the repository, by its path from the root."""
    found = {name: text.count("\n") for name, text in texts() if name.endswith(".py")}
    assert len(found) > 1000, f"the files of {ROOT} were not read"
    return found


def test_no_file_is_long(lines: dict[str, int]) -> None:
    assert not longer(lines, MOST)


def test_a_long_file_is_found() -> None:
    assert longer({"a.py": MOST, "b.py": MOST + 1}, MOST) == {"b.py"}
