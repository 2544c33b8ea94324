"""Names in documents and docstrings: the files, modules and attributes are there."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
from helpers.repository.sources import ROOMS, ROOT, sources

PAGES = ("README.md", "CONTRIBUTING.md", *sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")
))  # fmt: skip
PLACES = ("pcp", *ROOMS, *PAGES)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
STRING = re.compile(r'"""(.*?)"""', re.DOTALL)
CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:((?:\n(?: .*)?)*)", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"([\w./-]+\.(?:py|md|toml))(?:::(\w+))?")
DOTTED = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)((?:\.\w+)*)(?:\(.*\))?")
#: Libraries and dialects after which a module of ours is named, and what is no name.
FOREIGN = {"chlo", "inspect", "iree", "jax", "sdy", "stablehlo", "torch"}
SUFFIXES = {"html", "json", "jsonl", "log", "mlir"}
KINDS = {".py", ".md", ".toml"}
#: What means nothing of the repository, and why.
ELSEWHERE = {
    "FILE.py": "a file that the user chooses",
    "Traced.lower": "a method of JAX",
    "pipeline.run(module)": "a call of the reader's",
    "step.dim": "an attribute of an argument",
}


@cache
def files() -> tuple[str, ...]:
    """Every file of the repository that a document may name."""
    folders = ("pcp", *ROOMS, "tests", "docs", "benchmarks", "examples", "lit_tests")
    found = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in KINDS]
    return tuple(
        "/" + str(path.relative_to(ROOT)) for path in (*found, *ROOT.glob("*.*"))
    )


@cache
def modules() -> dict[str, set[str]]:
    """The words of every module, and the modules of every package, by its last name."""
    words: dict[str, set[str]] = defaultdict(set)
    for room in ("pcp", *ROOMS):
        for path in sources(room):
            stem = path.parent.name if path.stem == "__init__" else path.stem
            words[stem] |= set(re.findall(r"\w+", path.read_text()))
            words[path.parent.name].add(path.stem)
            if path.parent.parent != ROOT:  # a checkout may have any name
                words[path.parent.parent.name].add(path.parent.name)
    return words


@cache
def classes() -> dict[str, tuple[set[str], set[str]]]:
    """The words in the body of every class by name, and the names of its bases."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for room in ("pcp", *ROOMS):
        for path in sources(room):
            for name, parents, body in CLASS.findall(path.read_text()):
                words, bases = found.setdefault(name, (set(), set()))
                words |= set(re.findall(r"\w+", body))
                bases |= set(re.findall(r"\w+", parents))
    return found


def attributes(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """The words of a class and of its bases."""
    words, bases = classes().get(name, (set(), set()))
    inherited = (attributes(base, seen | {name}) for base in bases - seen - {name})
    return words.union(*inherited)


def described(place: str) -> Iterator[tuple[str, str]]:
    """Where a docstring or a page of a place is, and its text."""
    if place.endswith(".md"):
        yield place, FENCED.sub("", (ROOT / place).read_text())
        return
    for path in sources(place):
        for text in STRING.findall(path.read_text()):
            yield str(path.relative_to(ROOT)), text


def stale(text: str) -> list[str]:
    """The names of files, modules, classes and their parts that mean nothing."""
    return [code for code in CODE.findall(text) if _is_stale(code.strip())]


def _is_stale(code: str) -> bool:
    if code in ELSEWHERE:
        return False
    if match := FILE.fullmatch(code):
        return _lacks_file(*match.groups())
    if not (match := DOTTED.fullmatch(code)):
        return False
    owner, part, rest = match.groups()
    if owner == "pcp":
        return part in ROOMS and _lacks_module([part, *rest.split(".")[1:]])
    if rest or owner in FOREIGN or part in SUFFIXES:
        return False
    if owner in classes():
        return part not in attributes(owner)
    return owner in modules() and part not in modules()[owner]


def _lacks_file(path: str, test: str | None) -> bool:
    found = [name for name in files() if name.endswith("/" + path)]
    if test is None:
        return not found
    texts = ((ROOT / name[1:]).read_text() for name in found)
    return not any(f"def {test}(" in text for text in texts)


def _lacks_module(parts: list[str]) -> bool:
    """Whether a dotted path from a room ends at nothing."""
    place = ROOT
    for i, part in enumerate(parts):
        file = place / f"{part}.py"
        if file.exists():
            return not set(parts[i + 1 :]) <= modules()[part]
        if not (place / part).is_dir():
            return part not in modules()[place.name]
        place /= part
    return False


@pytest.mark.parametrize("place", PLACES)
def test_what_documents_name_is_there(place):
    gone = [(where, name) for where, text in described(place) for name in stale(text)]
    assert not gone


@pytest.mark.parametrize(
    "code",
    [
        "runtime/seat.py",
        "group/seat.py",
        "tests/architecture/test_names.py::test_gone",
        "pcp.runtime.group.seat",
        "pcp.runtime.group.membership.Seat",
        "Membership.seat",
        "membership.Seat",
        "Membership.seat(name)",
    ],
)
def test_a_name_that_is_gone_is_found(code):
    assert stale(f"See `{code}`.") == [code]


@pytest.mark.parametrize(
    "code",
    [
        "runtime/group/membership.py",
        "group/membership.py",
        "tests/architecture/test_names.py::test_the_table_is_read_whole",
        "pcp.runtime.group.membership",
        "pcp.runtime.group.membership.Membership.join",
        "Membership.join(name)",
        "ElasticCommunicator.all_reduce",
        "membership.Membership",
        "group.membership",
        "jax.vjp",
        "np.float32",
    ],
)
def test_a_name_that_is_there_is_not_reported(code):
    assert not stale(f"See `{code}`.")


def test_what_is_named_elsewhere_is_still_named():
    everywhere = {
        code
        for place in PLACES
        for _, text in described(place)
        for code in CODE.findall(text)
    }
    assert set(ELSEWHERE) <= everywhere


def test_fenced_blocks_and_code_across_lines_are_not_names():
    assert not stale(FENCED.sub("", "```\n`runtime/seat.py`\n```\n"))
    assert list(described("README.md"))
