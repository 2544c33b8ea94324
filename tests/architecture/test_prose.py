"""The subject of a sentence is a noun: not Who, Nobody or Somebody.

In docstrings, and in the documents but for the guide, which tells a story.
"""

import ast
import re
from functools import cache

import pytest
from helpers.repository.sources import ROOMS, ROOT, nodes, sources

FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")
))  # fmt: skip
PERSON = re.compile(
    r"(?:^|[.;:|] )(Who(?:ever)?|(?:No|Some|Any|Every)(?:body|one))\b(?:'s)? [^.|]*"
)


#: A docstring that begins so has no noun as its subject.
HEADLESS = re.compile(r"(?:Of|What|Whose|Whom|It|They|That|Said)\b")


@cache
def strings(source: str) -> tuple[str, ...]:
    """The docstrings of a source, of its attributes too, each on one line."""
    values = (
        node.value.value
        for node in nodes(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    return tuple(" ".join(text.split()) for text in values if isinstance(text, str))


def sentences(source: str) -> list[str]:
    """Those of which the subject is a person without a name."""
    return [match[0] for text in strings(source) for match in PERSON.finditer(text)]


def headless(source: str) -> list[str]:
    """The docstrings of a source that begin without a noun."""
    return [text for text in strings(source) if HEADLESS.match(text)]


@pytest.mark.parametrize("room", ["runtime", "training"])
def test_docstrings_begin_with_a_noun_or_a_verb(room: str) -> None:
    assert not [t for file in sources(room) for t in headless(file.read_text())]


@pytest.mark.parametrize("text", ["Of the bundle.", "What it is.", "It waits."])
def test_a_docstring_without_a_noun_is_found(text: str) -> None:
    assert headless(f'"""{text}"""') == [text]
    assert not headless('"""The digest of what it is. Offers: whatever it has."""')


@pytest.mark.parametrize("room", ["pcp", *ROOMS])
def test_subjects_are_nouns(room: str) -> None:
    files = sources(room)
    assert sum(len(strings(file.read_text())) for file in files) > 30
    found = {
        str(file.relative_to(ROOT)): said
        for file in files
        if (said := sentences(file.read_text()))
    }
    assert not found


@pytest.mark.parametrize("page", PAGES)
def test_subjects_of_pages_are_nouns(page: str) -> None:
    paragraphs = FENCED.sub("", (ROOT / page).read_text()).split("\n\n")
    lines = (" ".join(paragraph.split()) for paragraph in paragraphs)
    assert not [match[0] for line in lines for match in PERSON.finditer(line)]


@pytest.mark.parametrize(
    "text",
    [
        "Who has heard from all votes.",
        "It waits. Nobody else does.",
        "What is said: somebody hears it. Everyone's facts.",
    ],
)
def test_a_person_without_a_name_is_found(text: str) -> None:
    assert len(sentences(f'"""{text}"""')) == 1


def test_nouns_and_questions_in_mid_sentence_are_let_through() -> None:
    assert not sentences(
        '"""A member votes. It says who has heard, and nobody waits."""'
    )
