"""The documentation as a site: every page is in it, and questions are answered near."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
import yaml
from helpers.repository.sources import ROOMS, ROOT, sources

from pcp.tools.pages.site import without_outer_links

DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s#]*\.md)?(#[\w-]+)?\)")
CLICKS = 2

#: What strangers ask: the page that answers, and words that stand there.
QUESTIONS = (
    ("how do I install it", "tour.md", "pip install"),
    ("how do I train my PyTorch model", "tutorials/pytorch.md", "pcp export --torch"),
    ("how do I bring a JAX function", "tutorials/jax.md", "pcp.from_jax"),
    ("how do I fine-tune a model of Hugging Face", "exporting.md", "--hf"),
    ("how do I use two machines", "tutorials/two-machines.md", "worker --connect"),
    ("how do I resume", "troubleshooting.md", "## How do I resume?"),
    ("what does PeerLost mean", "troubleshooting.md", "`PeerLost`"),
    ("how do I add an optimizer", "extending.md", "optimizers="),
    ("how do I add an algorithm", "extending.md", "algorithms="),
    ("how do I add a derivative rule", "adding-a-rule.md", "## 3. Write the formula"),
    ("how do I write a pass", "tutorials/write-a-pass.md", "class DoubleByMultiplying"),
    ("which data formats are there", "data.md", "parquet"),
    ("what is DiLoCo", "guide/06-diloco.md", "anchor"),
    ("which algorithm sends the least", "algorithms-table.md", "bytes"),
    ("what happens when a worker dies", "tutorials/a-worker-dies.md", "kill -9"),
    ("how do I encrypt it", "training.md", "--tls-cert"),
    ("how do I spread a model", "tutorials/spread-a-model.md", "--sharding"),
    ("how do I serve a model", "tutorials/serve-it.md", "pcp serve"),
    ("how do I choose a mesh", "planning.md", "pcp plan"),
    ("what is a lease", "glossary.md", "| lease |"),
    ("which keys has an experiment", "reference/experiment.md", "`outer_loop_steps`"),
    ("what does pcp control do", "reference/commands.md", "## pcp control"),
    ("which metrics does Prometheus get", "reference/metrics.md", "`pcp_loss`"),
    ("does it run on CUDA", "limits.md", "CUDA"),
    ("how do I use Slurm or Kubernetes", "training.md", "--on slurm"),
    ("what must a worker install", "tutorials/two-machines.md", "'.[secure]'"),
    ("how do I see my runs in a browser", "training.md", "`pcp ui` shows the runs"),
    ("how do I end a run without a terminal", "training.md", "pcp control cancel"),
    ("how do I get my weights back", "tutorials/pytorch.md", "load_state_dict"),
    ("how do I free the disk", "reference/commands.md", "## pcp clean"),
    ("how is a claim checked", "evidence.md", "| claim | command |"),
)  # fmt: skip


@cache
def pages() -> dict[str, str]:
    """Every page's text, by its path below docs."""
    return {str(p.relative_to(DOCS)): p.read_text() for p in DOCS.rglob("*.md")}


def prose(text: str) -> str:
    """Without blocks and code spans, in which a link is none."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: str) -> Iterator[tuple[str, str]]:
    """Page and anchor of each link of a page to another one of the site."""
    folder = PurePosixPath(page).parent
    for path, anchor in LINK.findall(prose(pages()[page])):
        if not path.startswith("http"):
            yield (_normal(folder / path) if path else page), anchor.removeprefix("#")


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def anchors(page: str) -> set[str]:
    """Those of a page's headings, as the site makes them."""
    from markdown.extensions.toc import slugify

    heads = re.findall(r"^#+ (.*)$", pages()[page], re.MULTILINE)
    return {slugify(re.sub(r"[`*\\]", "", head), "-") for head in heads}


@cache
def near() -> set[str]:
    """The pages within two clicks of the index."""
    found = {"index.md"}
    for _ in range(CLICKS):
        found |= {to for page in found for to, _ in links(page) if to in pages()}
    return found


@pytest.mark.parametrize(("asked", "page", "said"), QUESTIONS, ids=lambda q: q[:40])
def test_a_question_is_answered_within_two_clicks(asked, page, said):
    assert said in pages()[page]
    assert page in near()


def test_there_are_twenty_questions():
    assert len({asked for asked, _, _ in QUESTIONS}) == len(QUESTIONS) >= 20
    assert near() < set(pages()), "all pages are near: the test would be vacuous"


def test_every_link_leads_to_a_page_and_a_heading():
    pytest.importorskip("markdown", reason="anchors need pip install '.[docs]'")
    found = [(page, *link) for page in pages() for link in links(page)]
    outside = [to for _, to, _ in found if to.startswith("..")]
    assert len(found) > 100
    for page, to, anchor in found:
        assert to in pages() or to in outside, f"{page}: {to}"
        assert not anchor or anchor in anchors(to), f"{page}: {to}#{anchor}"


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    named = list(_files(yaml.safe_load(text)["nav"]))
    assert sorted(named) == sorted(pages())


def _files(entries: list) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from _files(value) if isinstance(value, list) else [value]


def test_links_out_of_the_docs_become_names():
    text = "[a](../tests/x.py) [b](data.md) [`c`](../../x.py)"
    assert without_outer_links(text, 0) == "`a` [b](data.md) `c`"
    assert without_outer_links(text, 1) == "[a](../tests/x.py) [b](data.md) `c`"


def test_the_glossary_has_forty_terms():
    rows = re.findall(r"^\| (?!word|-)[^|]+ \|", pages()["glossary.md"], re.MULTILINE)
    assert len(set(rows)) >= 40


#: Words of the glossary that the guide and the tutorials use as anybody does.
EVERYDAY = {
    *("answer", "block", "call", "chunk", "move", "pass", "past", "request", "run"),
    *("state", "trust"),
}
#: A page, and a word of the glossary that means something else there.
OTHERWISE = {
    ("guide/01-agree.md", "round"),
    ("guide/03-sockets.md", "stream"),
    ("guide/05-quantise.md", "round"),
    ("guide/07-derivative.md", "contribution"),
    ("guide/07-derivative.md", "round"),
    ("guide/09-module.md", "artifact"),
    ("tutorials/write-a-rule.md", "key"),
}
TAUGHT = sorted(page for page in pages() if re.match(r"guide/\d|tutorials/", page))
#: What is no prose: blocks, code, headings, tables, and links to other pages.
NO_PROSE = re.compile(
    r"^ *```.*?^ *```|`[^`\n]*`|^#[^\n]*$|^\|[^\n]*$"
    r"|!?\[[^\]]*\]\((?!\.\./glossary)[^)]*\)",
    re.DOTALL | re.MULTILINE,
)


@cache
def terms() -> list[str]:
    """The words of the glossary, the longest first."""
    rows = re.findall(
        r"^\| (?!word \|)([^|]+) \|", pages()["glossary.md"], re.MULTILINE
    )
    return sorted(
        {t for row in rows for t in row.split(", ")}, key=lambda t: (-len(t), t)
    )


def unlinked(text: str) -> list[str]:
    """Words of the glossary whose first use in a page is no link to it."""
    text = NO_PROSE.sub("", text)
    text = re.sub(r"\[([^\]]*)\]\(\.\./glossary\.md#[\w-]+\)", r"<\1>", text)
    found = []
    for term in terms():
        word = re.escape(term).replace(r"\ ", r"\s")
        used = re.search(
            rf"(?<![\w-])(<?){word}(?:s|es)?(?![\w-])", text, re.IGNORECASE
        )
        if (
            used
            and not used[1]
            and not re.search(rf"<[^>]*{word}", text[: used.start()])
        ):
            found.append(term)
    return found


@pytest.mark.parametrize("page", TAUGHT)
def test_a_word_of_the_glossary_is_linked_where_it_is_first_used(page):
    found = set(unlinked(pages()[page])) - EVERYDAY
    assert found == {word for at, word in OTHERWISE if at == page}


def test_a_word_that_is_not_linked_is_found():
    assert (
        unlinked("a lease")
        == unlinked("a lease, a [lease](../glossary.md#x)")
        == ["lease"]
    )
    assert unlinked("a [lease](../glossary.md#x), two leases, `shepherd`") == []
    assert unlinked("the [outer step](../glossary.md#x) and the [ledger](x.md)") == []
    assert len(TAUGHT) > 15
    assert EVERYDAY <= {*terms()}


@cache
def words() -> str:
    """Every text and every class name in the code."""
    found = []
    for room in ("pcp", *ROOMS):
        for path in sources(room):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.ClassDef):
                    found.append(node.name)
    return "\n".join(found)


def unsaid(text: str) -> list[str]:
    """Errors of the first column that nothing in the code says."""
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    return [
        row
        for row in rows
        if not all(part.strip(" :") in words() for part in row.split("..."))
    ]


def test_every_error_of_troubleshooting_is_said_by_the_code():
    #: pydantic says it.
    assert unsaid(pages()["troubleshooting.md"]) == ["Field required"]


def test_an_error_that_is_gone_is_found():
    assert unsaid("| `the seat is ... taken` | a | b |") == ["the seat is ... taken"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    pytest.importorskip("material", reason="the site needs pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "index.html").read_text()
    assert "Troubleshooting" in made
    assert "fonts.googleapis" not in made
