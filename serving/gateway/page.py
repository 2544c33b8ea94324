"""The chat page as one HTML file, in the style of the pages of runs."""

from functools import cache
from importlib.resources import files

from pcp.training.observe.page_files import page_head


@cache
def chat_page() -> str:
    """The page, which needs nothing from the internet."""
    folder = files(__package__ or "pcp.serving.gateway")
    return page_head() + folder.joinpath("chat.html").read_text(encoding="utf-8")
