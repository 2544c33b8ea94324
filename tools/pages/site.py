"""What mkdocs asks for while it builds the site (`hooks` of mkdocs.yml).

A page may point at a file of the repository, which a reader of the clone can open and
the site does not have: there its name is left, as code.
"""

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text without links out of the folder `docs`."""
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1
    return without_outer_links(markdown, depth)


def without_outer_links(text: str, depth: int) -> str:
    """`depth` folders lie between page and `docs`; a link that goes up more goes."""

    def kept(link: re.Match[str]) -> str:
        outside = link[2].count("../") > depth
        return f"`{link[1].strip('`')}`" if outside else link[0]

    return _LINK.sub(kept, text)
