"""The map in docs/architecture.md has every sub-room, in its own words."""

import ast
import re

import pytest
from helpers.repository.sources import ROOMS, ROOT

MAP = ROOT / "docs" / "architecture.md"


def summary(source: str) -> str:
    """The first paragraph of a module's docstring, on one line."""
    paragraph, _, _ = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return " ".join(paragraph.split())


def sub_rooms() -> dict[str, str]:
    """What each package inside a room says that it is."""
    found = (path for room in ROOMS for path in (ROOT / room).glob("*/**/__init__.py"))
    return {
        f"{path.parent.relative_to(ROOT)}/": summary(path.read_text()) for path in found
    }


def listed(text: str) -> dict[str, str]:
    """The rows of the table under "Sub-rooms"."""
    _, _, section = text.partition("\n## Sub-rooms\n")
    section, _, _ = section.partition("\n## ")
    return dict(re.findall(r"^\| `([\w/]+/)` \| (.*) \|$", section, re.MULTILINE))


def differences(text: str) -> list[tuple[str, str]]:
    """Sub-rooms that a map lacks, has too many, or describes in other words."""
    return sorted({*listed(text).items()} ^ {*sub_rooms().items()})


def test_every_sub_room_is_on_the_map() -> None:
    assert len(sub_rooms()) > 40
    assert not differences(MAP.read_text())


@pytest.mark.parametrize(
    ("is_there", "planted"),
    [
        (r"\| `runtime/memory/` .*\n", ""),
        (r"\| `runtime/memory/` \| ", "| `runtime/memory/` | Not "),
        (r"\| `runtime/memory/` ", "| `runtime/no_such_room/` "),
    ],
)
def test_a_map_that_is_wrong_is_found(is_there: str, planted: str) -> None:
    wrong, changed = re.subn(is_there, planted, MAP.read_text())
    assert changed == 1
    assert differences(wrong)


def test_an_undocumented_package_has_no_summary() -> None:
    assert summary("x = 1") == ""
    assert summary('"""One\ntwo.\n\nThree."""') == "One two."
