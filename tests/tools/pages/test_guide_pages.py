"""The guide's pages: pictures as they are drawn, notebooks, and the real code."""

import json
import re

import pytest
from helpers.repository.page_in_order import RUN
from helpers.repository.sources import ROOT

from pcp.tools.guide.chapters import CHAPTERS, page_of
from pcp.tools.pages import guide_pictures, notebooks
from pcp.tools.pages.fences import blocks_of

PAGES = [ROOT / "docs" / page_of(number) for number in range(1, len(CHAPTERS) + 1)]
ROW = re.compile(r"^\| [^|]+ \| `([^`]+)`((?: `\w+`)*) \|$", re.MULTILINE)


def test_the_pictures_are_those_that_are_drawn(capsys):
    assert guide_pictures.main(["--check"]) == 0, capsys.readouterr().err


def test_an_older_picture_is_told(tmp_path, capsys):
    name = "01-agree.svg"
    (tmp_path / name).write_text("<svg/>")
    assert guide_pictures.main(["--check", "--out", str(tmp_path)]) == 1
    assert f"{name} is not up to date; run: make docs" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_does_what_the_page_does(page):
    pytest.importorskip("nbformat", reason="notebooks need pip install '.[docs]'")
    text = page.read_text()
    made = json.loads(notebooks.notebook(text))
    code = ["".join(c["source"]) for c in made["cells"] if c["cell_type"] == "code"]
    run = [b for b in blocks_of(page.name, text) if b.title or b.language in RUN]
    assert len(run) == len(code) > 1
    for block, source in zip(run, code, strict=True):
        first, _, rest = source.partition("\n")
        if block.title:
            assert first == f"%%writefile {block.title}"
        elif block.language == "bash":
            assert first == "%%bash"
        else:
            rest = source
        assert rest == block.text.rstrip("\n")


def test_a_notebook_is_the_same_each_time_and_loses_no_text():
    pytest.importorskip("nbformat", reason="notebooks need pip install '.[docs]'")
    text = PAGES[0].read_text()
    assert notebooks.notebook(text) == notebooks.notebook(text)
    kept = "\n".join(source for _, source, _ in notebooks.cells(text))
    for line in text.splitlines():
        assert line in kept or line in ("```python", "```bash", "```")


def lacking(text: str) -> list[str]:
    """What the table "In the real code" of a chapter names and is not there."""
    found = []
    _, _, section = text.partition("## In the real code\n")
    for path, names in ROW.findall(section):
        file = ROOT / path
        source = file.read_text() if file.is_file() else ""
        found += [] if file.exists() else [path]
        for name in re.findall(r"\w+", names):
            if not re.search(rf"^(?:class|def) {name}\b|^{name}\b", source, re.M):
                found.append(f"{path} {name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_real_code_is_there(page):
    text = page.read_text()
    assert len(ROW.findall(text)) >= 3
    assert not lacking(text)


def test_code_that_is_gone_is_found():
    head = "## In the real code\n"
    assert lacking(f"{head}| a | `runtime/seat.py` `Seat` |") == [
        "runtime/seat.py", "runtime/seat.py Seat"
    ]  # fmt: skip
    assert lacking(f"{head}| a | `pcp/mesh.py` `Seat` |") == ["pcp/mesh.py Seat"]
    assert not lacking(f"{head}| a | `pcp/mesh.py` `Mesh` |")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_chapter_has_all_its_parts(page):
    text = page.read_text()
    assert f"](pictures/{page.stem}.svg)" in text
    for part in ("## Your turn", "## Quiz", "## In the real code"):
        assert text.count(f"\n{part}\n") == 1
    assert text.count("<details>") == text.count("</details>") >= 3
    assert sum(block.language == "text" for block in blocks_of(page.name, text)) >= 2
