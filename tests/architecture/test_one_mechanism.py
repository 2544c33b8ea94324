"""What is done in one place: the calls that it takes stand nowhere else.

JSON has a test of its own (`test_json.py`), and what a plan says (`test_one_plan.py`).
"""

import re

import pytest
from helpers.repository.sources import ROOMS, ROOT, sources

#: What is looked for, and the only files that have it.
ONE: dict[str, tuple[str, set[str]]] = {
    "a file that replaces another": (
        r"\bos\.replace\(",
        {
            "pcp/whole_file.py",
            "training/storage/run_folder.py",  # a link, which has no content
        },
    ),
    "an address in two parts": (
        r"""\b\w+, \w+, port = \w+\.r?partition\(":"\)""",
        {"runtime/transport/address.py"},
    ),
    "this machine alone": (r"\)\.is_loopback$", {"runtime/transport/address.py"}),
    "the largest port": (r"> 65535\b|= 65535$", {"runtime/transport/address.py"}),
    "a listener's wildcard": (
        r"""["']0\.0\.0\.0["'](?!:)""",
        {"runtime/transport/address.py", "tools/launchers/plan.py"},
    ),
    "an HTTP server by hand": (
        r"\bBaseHTTPRequestHandler\b|\buvicorn\.Config\(",
        {"training/observe/web/server.py"},
    ),
    "the type of a function": (
        r"""\.attributes\["function_type"\] = """,
        {"dialect/function_body.py"},
    ),
    "a package of metrics": (
        r"""import_module\("prometheus_client"\)|^\s*from prometheus_client\b""",
        {"runtime/communicator/prometheus_exporter.py"},
    ),
    "the files of an index": (
        r"""(?:get\(|\[)"weight_map"[\])]""",
        {"pcp/outside.py"},
    ),
    "what a page may load": (r"default-src", {"training/observe/page_files.py"}),
}


def having(pattern: str, source: str) -> list[str]:
    """The lines of a source in which that stands."""
    if not re.search(pattern, source, re.MULTILINE):
        return []
    return [line for line in source.splitlines() if re.search(pattern, line)]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every source by its path from the root."""
    files = (path for room in ("pcp", *ROOMS) for path in sources(room))
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


@pytest.mark.parametrize("what", ONE)
def test_it_is_done_in_one_place(what: str, texts: dict[str, str]) -> None:
    pattern, homes = ONE[what]
    assert {name for name, text in texts.items() if having(pattern, text)} == homes


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a file that replaces another", "        os.replace(hidden, path)"),
        ("an address in two parts", '    host, colon, port = text.rpartition(":")'),
        ("this machine alone", "    return ip_address(host).is_loopback"),
        ("the largest port", "    if int(port) > 65535:"),
        ("a listener's wildcard", '    if host in ("0.0.0.0", "::"):'),
        ("an HTTP server by hand", "class Other(BaseHTTPRequestHandler):"),
        ("the type of a function", '    made.attributes["function_type"] = type_'),
        ("a package of metrics", '    client = import_module("prometheus_client")'),
        ("the files of an index", '    names = json.loads(text)["weight_map"]'),
        ("what a page may load", """POLICY = "default-src 'none'" """),
    ],
)
def test_a_second_place_would_be_seen(what: str, line: str) -> None:
    assert having(ONE[what][0], line)
