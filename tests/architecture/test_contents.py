"""What no file of the repository holds: paths and hosts of one machine."""

import re

import pytest
from helpers.repository.sources import listed, texts

FORBIDDEN = re.compile(
    r"(?<![\w./])/(?:work|home/\w+|root|Users/\w+|tmp)/[\w.]"  # someone's folders
    r"|\bindex-url\b|\bextra-index\b"  # someone's registry
)
# The check itself, and places that speak of such folders in general.
EXEMPT = {"tests/architecture/test_contents.py"}


def findings(text: str) -> list[str]:
    """Lines with a path or host that exists on one machine only."""
    if not FORBIDDEN.search(text):
        return []
    return [line.strip() for line in text.splitlines() if FORBIDDEN.search(line)]


def test_no_file_names_a_machine():
    seen = 0
    for name, text in texts():
        seen += 1
        if name not in EXEMPT:
            assert findings(text) == [], name
    assert seen > 100


ROOT_ENTRIES = frozenset(
    ".ci .dockerignore .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE "
    "Makefile README.md autodiff benchmarks compiler containers dialect docs engines "
    "examples frontends lit_tests mkdocs.yml passes pcp pyproject.toml runtime serving "
    "src tests tools training typings".split()
)


def test_nothing_was_left_in_the_root():
    """What a compiler or a cache left there by chance is no part of the repository."""
    tracked = {name.split("/")[0] for name in listed()}
    assert tracked == ROOT_ENTRIES


@pytest.mark.parametrize("folder", ["work", "home", "tmp"])
def test_a_folder_of_one_machine_would_be_seen(folder):
    assert findings(f"path = '/{folder}/main/x'")
    assert not findings(f"https://github.com/{folder}/main, runs/{folder}/x")


def test_a_registry_would_be_seen():
    assert findings("pip install --index-url https://example.org/simple")
