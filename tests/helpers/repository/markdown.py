"""The fenced blocks of all Markdown in the repository."""

from helpers.repository.sources import texts

from pcp.tools.pages.fences import Block, blocks_of


def all_blocks() -> list[Block]:
    """Those of every document that git knows, in its order."""
    documents = [(name, text) for name, text in texts() if name.endswith(".md")]
    return [block for name, text in documents for block in blocks_of(name, text)]
