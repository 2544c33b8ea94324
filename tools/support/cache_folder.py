"""Where compiled modules are kept when nobody says: the user's cache folder."""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PCP_CACHE"
OFF = "off"


def cache_folder(
    asked: str | None = None, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The folder asked for, else `$PCP_CACHE`, else the user's.

    `off` is None, and so is the user's where there is no home.
    """
    said = asked or environment.get(VARIABLE)
    if said == OFF:
        return None
    if said:
        return Path(said)
    base = environment.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "pcp" / "modules"
    except RuntimeError:  # a user whom the system does not know
        return None
