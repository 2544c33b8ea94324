"""Numbers of bytes as users write them."""

import re

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def bytes_in(text: str) -> int | None:
    """`1.5GiB` in bytes; None for what is no number with one of `UNITS`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w+)", text)
    if match is None or match[2] not in UNITS:
        return None
    return int(float(match[1]) * UNITS[match[2]])


def bytes_text(count: float) -> str:
    """`349241` as `341.1 KiB`."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
