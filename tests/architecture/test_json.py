"""All JSON is written by `pcp.strict_json`, so that every parser can read it."""

import ast

import pytest
from helpers.repository.sources import ROOMS, ROOT, sources

WRITER = "pcp/strict_json.py"
#: Python's words for NaN and infinity, and pydantic's `null` in their place.
LOOSE = {("json", "dumps"), ("json", "dump")}
OF_MODELS = {"model_dump_json", "dump_json"}


def writers(source: str) -> list[int]:
    """The lines that write JSON some other way."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else ""
            if (base, node.attr) in LOOSE or node.attr in OF_MODELS:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "json":
            if any(name.name.startswith("dump") for name in node.names):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("room", ["pcp", *ROOMS])
def test_json_is_written_in_one_place(room):
    for file in sources(room):
        path = str(file.relative_to(ROOT))
        found = writers(file.read_text())
        assert path == WRITER or not found, f"{path}:{found}: use pcp.strict_json"


@pytest.mark.parametrize(
    "line",
    [
        "x = json.dumps(y)",
        "import json\njson.dump(y, file)",
        "from json import dumps",
        "print(model.model_dump_json(indent=1))",
        "TypeAdapter(X).dump_json(x)",
    ],
)
def test_another_writer_would_be_seen(line):
    assert writers(line)


def test_reading_and_the_one_writer_are_let_through():
    assert not writers("json.loads(x)\nstrict_json.dumps(y)")
    assert writers((ROOT / WRITER).read_text())
