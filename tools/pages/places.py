"""Where pages and pictures that the code makes belong in a checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GUIDE = DOCS / "guide"
PICTURES = DOCS / "pictures"
"""Of pages, as a browser shows them."""
