"""All JSON is written and parsed by `pcp.strict_json`.

So every parser can read what pcp writes, and no JSON that comes from elsewhere ends the
parser's stack.
"""

import ast

import pytest
from helpers.repository.sources import ROOMS, ROOT, nodes, sources

WRITER = "pcp/strict_json.py"
#: Python's words for NaN and infinity, and pydantic's `null` in their place; a
#: `RecursionError` where JSON is deep.
LOOSE = {("json", name) for name in ("dumps", "dump", "loads", "load")}
OF_MODELS = {"model_dump_json", "dump_json"}


def others(source: str) -> list[int]:
    """The lines that write or parse JSON some other way."""
    found = []
    for node in nodes(source) if "json" in source else ():
        if isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else ""
            if (base, node.attr) in LOOSE or node.attr in OF_MODELS:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "json":
            if any(("json", name.name) in LOOSE for name in node.names):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("room", ["pcp", *ROOMS])
def test_json_is_written_and_parsed_in_one_place(room):
    for file in sources(room):
        path = str(file.relative_to(ROOT))
        found = others(file.read_text())
        assert path == WRITER or not found, f"{path}:{found}: use pcp.strict_json"


@pytest.mark.parametrize(
    "line",
    [
        "x = json.dumps(y)",
        "import json\njson.dump(y, file)",
        "from json import dumps",
        "print(model.model_dump_json(indent=1))",
        "TypeAdapter(X).dump_json(x)",
        "x = json.loads(y)",
        "from json import load",
    ],
)
def test_another_way_would_be_seen(line):
    assert others(line)


def test_the_one_way_is_let_through():
    assert not others("strict_json.parse(x)\nstrict_json.dumps(y)")
    assert others((ROOT / WRITER).read_text())
