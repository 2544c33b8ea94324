"""Names: each class once within its room, and the words of docs/glossary.md."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import pytest
from helpers.repository.sources import ROOMS, ROOT, nodes, sources

from pcp.compiler.catalog import PASSES

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ?([^|]*) ?\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
#: A pass is named after what it does, as the op kind or rule beside it may be.
PASS_CLASSES = {tuple(home.split(":")) for home in PASSES.values()}


def rows() -> list[tuple[str, str, str, str]]:
    """Word, meaning, where, and what it is not called."""
    found = [
        [cell.strip() for cell in row] for row in ROW.findall(GLOSSARY.read_text())
    ]
    return [(word, *rest) for word, *rest in found if word != "word"]


@cache
def classes(room: str) -> tuple[tuple[str, str], ...]:
    """Every public class at the top of a module of a room: name and module."""
    return tuple(
        (node.name, "pcp." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
        for path in sources(room)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def twice(found: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Class names that stand for more than one thing, and where."""
    homes: dict[str, list[str]] = {}
    for name, module in found:
        if (module, name) not in PASS_CLASSES:
            homes.setdefault(name, []).append(module)
    return {name: where for name, where in homes.items() if len(where) > 1}


@pytest.mark.parametrize("room", ROOMS)
def test_a_class_name_is_there_once_in_its_room(room):
    assert not twice(classes(room))


def test_a_second_class_of_a_name_is_found():
    assert twice([("Member", "a"), ("Member", "b"), ("Group", "a")]) == {
        "Member": ["a", "b"]
    }


def missing(where: str) -> list[str]:
    """What a row's place names and is not there: a file, or a class in it."""
    path, *names = CODE.findall(where)
    file = ROOT / path
    if not file.exists():
        return [path]
    text = file.read_text() if file.is_file() else ""
    return [name for name in names if f"class {name}" not in text]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].replace(" ", "-"))
def test_what_the_glossary_names_is_there(row):
    assert not missing(row[2])


def test_a_place_that_is_gone_is_found():
    assert missing("`runtime/seat.py` `Seat`") == ["runtime/seat.py"]
    assert missing("`pcp/mesh.py` `Seat`") == ["Seat"]


def private_words() -> set[str]:
    """Class names in whose place the glossary has the field's word."""
    return {
        word
        for row in rows()
        for word in row[3].split(", ")
        if word and word[0].isupper()
    }


def test_no_class_has_a_name_that_the_glossary_replaces():
    words = private_words()
    assert len(words) > 15, "the last column was not read"
    used = {name for room in ROOMS for name, _ in classes(room)}
    assert not used & words


#: Identifiers in another sense than the one that the glossary replaces.
OTHER_SENSES = {
    "pcp": {
        "Method": "an algorithm and its options, a field of written manifests",
        "MissingPackage": "a Python package that is not installed",
        "method": "a value of `Method`",
        "package": "a Python package",
    },
    "runtime": {
        "FORMING": "a state of `Membership`, which a coordinator's status shows",
    },
    "training": {
        "meeting": "a key of heartbeats on the wire: an `InnerExchangeReport`",
        "patience": "a flag of workers: how long one looks for its shepherd",
        "waits": "a key of that report on the wire",
    },
}


def snake(name: str) -> str:
    """`SharedReduce` and `_shared_reduce` as `_shared_reduce_`."""
    return "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") + "_"


def replaced(room: str) -> set[str]:
    """The words that the glossary replaces for things of a room."""
    here = (row[3] for row in rows() if CODE.findall(row[2])[0].startswith(f"{room}/"))
    return {snake(word) for column in here for word in column.split(", ") if word}


def identifiers(source: str) -> Iterator[str]:
    """The functions, classes, parameters, variables and attributes of a source."""
    for node in nodes(source):
        match node:
            case ast.FunctionDef(name=str(name)) | ast.ClassDef(name=str(name)):
                yield name
            case ast.arg(arg=str(name)) | ast.alias(asname=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def private_names(source: str, words: set[str]) -> set[str]:
    """The identifiers of a source in which one of these words stands."""
    return {n for n in identifiers(source) if any(word in snake(n) for word in words)}


#: Rooms whose identifiers keep to the words of their own rows: all that replace a word.
HELD = [room for room in ("pcp", *ROOMS) if replaced(room)]


@pytest.mark.parametrize("room", HELD)
def test_no_identifier_has_a_word_that_the_glossary_replaces(room):
    words = replaced(room)
    found = {n for p in sources(room) for n in private_names(p.read_text(), words)}
    assert found == set(OTHER_SENSES.get(room, ()))


#: Words that stand in the prose of a room in their plain sense.
PLAIN = {
    "pcp": {"package"},
    "runtime": {"forming"},
    "training": {"beside", "stand in", "waits"},
}


def prose(source: str) -> Iterator[str]:
    """The comments, documentation and messages of a source, without code in them."""
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " in node.value.strip():
                yield " ".join(re.sub(CODE, "", node.value).split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def private_prose(source: str, words: set[str]) -> set[str]:
    """Which of these words the prose of a source has."""
    plain = {word.strip("_").replace("_", " ") for word in words}
    found = re.compile(rf"\b({'|'.join(sorted(plain))})s?\b", re.IGNORECASE)
    return {match.lower() for text in prose(source) for match in found.findall(text)}


@pytest.mark.parametrize("room", HELD)
def test_no_prose_has_a_word_that_the_glossary_replaces(room):
    words = replaced(room)
    found = {w for p in sources(room) for w in private_prose(p.read_text(), words)}
    assert found == PLAIN.get(room, set())


@pytest.mark.parametrize(
    "source",
    ['"""A member\'s seat."""', "x = 1  # of the seat", 'f"the seat of {x}"'],
)
def test_a_replaced_word_in_prose_is_found(source):
    assert private_prose(source, replaced("runtime")) == {"seat"}


def test_code_in_prose_is_let_through():
    assert not private_prose('"""What `seat` was."""', replaced("runtime"))


def test_rooms_that_replace_words_are_held():
    assert set(HELD) >= {"pcp", "runtime", "training"}


@pytest.mark.parametrize(
    "source",
    [
        "def seat(): ...",
        "def sit(seat): ...",
        "class HisSeat: ...",
        "self._seat = 1",
        "for seat in seats: ...",
        "from pcp import link as seat",
    ],
)
def test_an_identifier_with_a_replaced_word_is_found(source):
    assert len(private_names(source, replaced("runtime"))) == 1


def test_an_identifier_with_a_longer_word_is_not_found():
    assert not private_names("seats = downloaded = loop", replaced("runtime"))


def test_the_table_is_read_whole():
    lines = [line for line in GLOSSARY.read_text().splitlines() if line[:1] == "|"]
    heads = sum(line.startswith(("| word", "|---")) for line in lines)
    assert len(rows()) == len(lines) - heads > 50


def words_of(text: str) -> list[str]:
    """The words of `LeasePools` or of `lease pools`, each in the singular."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]+|[A-Za-z]", text)
    return [re.sub(r"(?<=[^s])s$", "", word.lower()) for word in found]


#: Last words of class names that are plain English, of a codec, or another's name.
PLAIN_NOUNS = set(
    """
    array average batch bound buffer callback child client collective connection content
    count dashboard declaration difference document edge figure file folder format group
    histogram input keyword kind limit line list log machine memory message name network
    option page phase pool profile range record registry report row runner sample server
    shape socket source target thread time timer timing token turn whereabout
    ahead architecture chain choice decision effort exporter fanout health leaving
    observation overlap reducer saver scatter traced
    affine cast grid k scaled
    board etcd face prometheu sgd tl
    """.split()
)
#: Bases of classes that are named by what happens: errors, calls and messages.
HAPPENINGS = {"Call", "Exception", "Message", "Tagged"}


def alternatives(texts: list[str]) -> set[str]:
    """The parts of unions of modules: events, effects and messages, by what happens."""
    unions = (
        node
        for text in texts
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        for node in ast.walk(statement.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    )
    parts = (part for union in unions for part in ast.walk(union))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def bases(texts: list[str]) -> dict[str, set[str]]:
    """Every class at the top of modules, with the names of all its bases there."""
    own = {
        node.name: {ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases}
        for text in texts
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }

    def above(name: str) -> set[str]:
        direct = own.get(name, set()) - {name}
        return direct.union(*(above(base) for base in direct))

    return {name: above(name) for name in own}


def unknown_nouns(texts: list[str]) -> dict[str, str]:
    """Public classes whose noun no row has, nor the list: the class and the noun."""
    table = rows()
    known = {noun for word, *_ in table for noun in words_of(word)} | PLAIN_NOUNS
    named = {name for row in table for name in CODE.findall(row[2])}
    named |= alternatives(texts)
    return {
        name: noun
        for name, above in bases(texts).items()
        if name[0] != "_" and name not in named and not above & HAPPENINGS
        if not any(base.endswith("Error") for base in above)
        if (noun := words_of(name)[-1]) not in known
    }


def texts_of(room: str) -> list[str]:
    """The sources of a room, and the errors of all rooms."""
    files = [*sources(room), ROOT / "pcp" / "errors.py"]
    return [file.read_text() for file in files]


@pytest.mark.parametrize("room", ["runtime", "training"])
def test_the_noun_of_a_class_is_a_word_of_the_glossary_or_plain(room):
    assert not unknown_nouns(texts_of(room))


@pytest.mark.parametrize(
    ("source", "noun"),
    [("class Seat: ...", "seat"), ("class GroupHouses: ...", "house")],
)
def test_a_class_with_a_noun_of_its_own_is_found(source, noun):
    assert list(unknown_nouns([source]).values()) == [noun]


@pytest.mark.parametrize(
    "source",
    [
        "class WorkerLease: ...",
        "class Link: ...",
        "class _Seat: ...",
        "class Seated(Exception): ...",
        "class Sat: ...\nclass Stood: ...\nEvent = Sat | Stood",
    ],
)
def test_known_nouns_errors_and_events_are_let_through(source):
    assert not unknown_nouns([source])


def test_plain_nouns_are_needed():
    used = {
        words_of(name)[-1]
        for room in ("runtime", "training")
        for name in bases(texts_of(room))
    }
    assert PLAIN_NOUNS <= used


def spoken() -> str:
    """The words of all sources and documents but the glossary, each in the singular."""
    pages = [page for page in (ROOT / "docs").glob("*.md") if page != GLOSSARY]
    files = [path for room in ("pcp", *ROOMS) for path in sources(room)]
    return " ".join(w for f in (*pages, *files) for w in words_of(f.read_text()))


def unspoken(table: list[str], text: str) -> list[str]:
    """The words of the glossary that no source and no document has."""
    terms = [term for word in table for term in word.split(", ")]
    return [term for term in terms if " ".join(words_of(term)) not in text]


def test_each_word_of_the_glossary_is_used():
    assert not unspoken([row[0] for row in rows()], spoken())


def test_a_word_that_nothing_uses_is_found():
    text = " ".join(words_of("The leasePool of a rank_of_an_island"))
    table = ["lease pool, rank of an island", "flux capacitor"]
    assert unspoken(table, text) == ["flux capacitor"]
