"""Every path and every test that a document names is there."""

import re
from collections.abc import Iterator

import pytest
from helpers.repository.sources import ROOMS, ROOT, texts

FOLDERS = (*ROOMS, "pcp", "tests", "lit_tests", "examples", "benchmarks", "docs")
OF_OTHERS = {
    "pcp/1": "a case of benchmarks/wan.py",
    "tests/lax_autodiff_test.py": "a file of JAX",
}
_CODE = re.compile(r"`+([^`]+)`+")
_PATH = re.compile(rf"(?<![\w./~<-])(?:{'|'.join(FOLDERS)})/[\w./*{{}},<> -]*[\w/}}*]")

_TEST = re.compile(r"(?<![\w/])(tests/[\w/]+\.py)::(test_\w+)")


def expanded(path: str) -> list[str]:
    """As a shell does: `a/{b,c}.py` is two."""
    found = re.search(r"\{([^{}]*)\}", path)
    if found is None:
        return [path]
    before, after = path[: found.start()], path[found.end() :]
    return [
        one for name in found[1].split(",") for one in expanded(before + name + after)
    ]


def paths(text: str) -> Iterator[str]:
    """Paths from the root of the repository in the code spans of a document.

    `<name>` in one is any name.
    """
    for code in _CODE.findall(text):
        code = re.sub(r"<[^>]*>", "*", code)
        for word in code.split():
            for match in _PATH.findall(word):
                yield from expanded(match)


def missing(text: str) -> list[str]:
    """Paths of which there is no file or folder, and tests that their file lacks."""
    found = {one for one in paths(text) if not any(ROOT.glob(one))} - {*OF_OTHERS}
    for path, name in _TEST.findall(text):
        if path not in found and f"def {name}(" not in (ROOT / path).read_text():
            found.add(f"{path}::{name}")
    return sorted(found)


def test_every_path_of_a_document_is_there() -> None:
    documents = {name: text for name, text in texts() if name.endswith(".md")}
    text = "\n".join(documents.values())
    assert len(list(paths(text))) > 200
    assert len(_TEST.findall(text)) > 40
    found = {name: gone for name, text in documents.items() if (gone := missing(text))}
    assert not found
    assert {*OF_OTHERS} <= {*paths(text)}, "an exemption that is left over"


@pytest.mark.parametrize(
    "text",
    [
        "`tests/no_such_test.py`",
        "`pytest -m slow tests/runtime tests/no_such_folder`",
        "`tests/test_mesh.py::test_no_such_test`",
        "`tests/test_{mesh,no_such_test}.py`",
        "`autodiff/no_such_folder/<chapter>.py`",
    ],
)
def test_a_path_that_is_gone_is_found(text: str) -> None:
    assert len(missing(text)) == 1


def test_a_path_that_is_there_is_none() -> None:
    assert not missing("`tests/test_{mesh,layout}.py` `autodiff/rules/<chapter>.py`")
    assert not missing("tests/no_such_test.py is no code, `runs/latest` is no folder")
