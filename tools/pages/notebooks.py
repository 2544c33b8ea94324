"""The guide's chapters as notebooks.

python -m pcp.tools.pages.notebooks --out notebooks

A block that the page runs is a cell: Python as it stands, a shell's behind `%%bash`,
a file behind `%%writefile`. All else is text, what a block prints too. Notebooks are
never edited: the page is the truth.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pcp.errors import MissingPackage, install
from pcp.tools.pages.fences import Block, blocks_of
from pcp.tools.pages.places import GUIDE
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run("pcp.tools.pages.notebooks", _main, argv)


def _main(argv: Sequence[str]) -> None:
    parser = Parser.documented("pcp.tools.pages.notebooks", __doc__)
    parser.add_argument("--out", type=Path, default=Path("notebooks"), metavar="DIR")
    folder = parser.parse_args(argv).out
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(GUIDE.glob("[0-9]*.md")):
        path = folder / f"{page.stem}.ipynb"
        path.write_text(notebook(page.read_text()))
        say(f"wrote {path}")


def notebook(page: str) -> str:
    """The text of a notebook (format 4.5) of a page's Markdown.

    Needs nbformat (extra `docs`), which checks it.
    """
    try:
        import nbformat
    except ImportError as error:
        raise MissingPackage(f"notebooks need nbformat: {install('docs')}") from error
    made = nbformat.v4.new_notebook(
        cells=[_made(nbformat.v4, *cell) for cell in cells(page)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.validate(made)
    return nbformat.writes(made) + "\n"


def _made(v4: Any, kind: str, source: str, number: int) -> Any:
    """A cell whose name follows from its place and text: the same file each time."""
    name = hashlib.sha256(f"{number} {source}".encode()).hexdigest()[:8]
    new = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
    return new(source=source, id=name)


def cells(page: str) -> Iterator[tuple[str, str, int]]:
    """Kind (`code` or `markdown`), source and number of each cell."""
    lines, done, number = page.splitlines(), 0, 0
    for block in blocks_of("page", page):
        if (source := code(block)) is None:
            continue
        if text := "\n".join(lines[done : block.line - 1]).strip("\n"):
            yield "markdown", text, number
            number += 1
        yield "code", source, number
        number += 1
        done = block.line + len(block.text.splitlines()) + 1
    yield "markdown", "\n".join(lines[done:]).strip("\n"), number


def code(block: Block) -> str | None:
    """The cell that does what the page's block does; None of one that is only read."""
    text = block.text.rstrip("\n")
    if block.title:
        return f"%%writefile {block.title}\n{text}"
    if block.language == "bash":
        return f"%%bash\n{text}"
    return text if block.language == "python" else None


if __name__ == "__main__":
    sys.exit(main())
