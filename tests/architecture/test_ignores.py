"""What the type checker is told to overlook, by file: no more than is listed here.

In tests a wrong type on purpose is marked where it is passed; in the sources an ignore
is for a library whose types are wrong or which is not installed everywhere.
"""

import re
from collections import Counter

import pytest
from helpers.repository.sources import ROOMS, ROOT, sources, texts

IGNORE = re.compile(r"#\s*(?:pyright|type):\s*ignore(?:\[([\w, ]+)\])?")
#: File: the rules that it does not keep, each as often as it may. May only shrink.
LEFT = {
    "compiler/driver.py": ["reportArgumentType"],
    "engines/mpi_engine.py": ["reportMissingImports"],
    "engines/torch_backend.py": ["reportCallIssue"],
    "runtime/program/devices.py": ["reportArgumentType"],
    "runtime/transport/mover.py": ["reportAttributeAccessIssue"],
    "runtime/transport/tls.py": ["reportReturnType"],
    "tools/commands/bench.py": ["reportPrivateImportUsage"] * 2,
    "training/data/formats/huggingface.py": ["reportMissingImports"],
}


def ignores(source: str) -> Counter[str]:
    """The rules that a source does not keep; "" for an ignore of all of them."""
    return Counter(IGNORE.findall(source))


def test_the_sources_keep_the_rules_of_types() -> None:
    files = {path for room in ("pcp", *ROOMS) for path in sources(room)}
    found = {
        str(path.relative_to(ROOT)): sorted(left.elements())
        for path in files
        if (left := ignores(path.read_text()))
    }
    assert found == LEFT


def test_an_ignore_names_its_rule() -> None:
    ours = "tests/architecture/test_ignores.py"
    found = {n: ignores(t)[""] for n, t in texts() if n.endswith(".py") and n != ours}
    assert len(found) > 1000
    assert not [name for name, unnamed in found.items() if unnamed]


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("x = f(1)  # pyright: ignore[reportCallIssue]", {"reportCallIssue": 1}),
        ("x = f(1)  # pyright: ignore", {"": 1}),
        ("x = f(1)  # type: " + "ignore", {"": 1}),
        ("x = f(1)  # ignored", {}),
    ],
)
def test_an_ignore_is_found(line: str, rules: dict[str, int]) -> None:
    assert ignores(line) == rules
