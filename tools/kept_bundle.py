"""A whole bundle that was compiled before: no pass runs, and MLIR is not imported.

    place = of(flags, options)         niche(options) for a run's
    if place and (found := place.get()):
        ...

What decides a bundle is `pcp.compiler.cache.bundle_key`. Not kept, and so compiled by
all passes each time, are those where not all of it is known: of a folder of
transformers, with an extension, with the IR of each pass, and where something else than
a bundle is written.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path

from pcp import strict_json
from pcp.compiler.cache import BUNDLE, Cache, bundle_key
from pcp.compiler.options import CompileOptions

GROUP = "pcp.extensions"
"""Entry points of packages that bring an extension."""
_EXTENSIONS = "pcp.tools.extension"


@dataclass(frozen=True)
class Kept:
    """A bundle, what was reported when it was made, and what to say of it."""

    content: bytes = field(repr=False)
    said: tuple[str, ...]
    output: str
    """The file's name where none is asked for."""
    about: str
    """Its mode and its functions."""


@dataclass(frozen=True)
class Niche:
    """Where the bundle of one compilation is kept, and what is said meanwhile."""

    cache: Cache
    key: str
    options: CompileOptions
    environment: Mapping[str, str] = field(repr=False)
    said: list[str] = field(default_factory=list[str])

    def get(self) -> Kept | None:
        """What is there."""
        entry = self.cache.get(self.key)
        if entry is None:
            return None
        head, _, content = entry.partition(b"\n")
        found = strict_json.parse(head)
        return Kept(content, **found | {"said": tuple(found["said"])})

    def put(self, kept: Kept) -> None:
        """Keep it, unless what decides it changed since: then nobody knows its key."""
        if bundle_key(self.options, self.environment) != self.key:
            return
        head = {k: v for k, v in asdict(kept).items() if k != "content"}
        line = strict_json.dumps(head | {"said": list(kept.said)}).encode()
        try:
            self.cache.put(self.key, line + b"\n" + kept.content)
        except OSError as error:
            folder = self.cache.folder
            self.options.tell_time(f"cache {folder}: not written: {error.strerror}")

    @property
    def listening(self) -> CompileOptions:
        """The options, with what they report kept for the next time."""
        return replace(self.options, report=self._report, timed=self.options.report)

    @property
    def _report(self) -> Callable[[str], None]:
        def report(line: str) -> None:
            self.said.append(line)
            self.options.report(line)

        return report


def of(
    flags: Namespace,
    options: CompileOptions,
    environment: Mapping[str, str] = os.environ,
) -> Niche | None:
    """The place of a command's compilation; None where its bundle is not kept."""
    if flags.emit != "bundle" or flags.hf is not None or flags.load:
        return None
    return niche(options, environment)


def niche(
    options: CompileOptions, environment: Mapping[str, str] = os.environ
) -> Niche | None:
    """The place of a bundle of these options; None where it is not kept."""
    if options.cache is None or options.keep_ir or _extended():
        return None
    name = bundle_key(options, environment)
    if name is None:
        return None
    return Niche(Cache(options.cache, kind=BUNDLE), name, options, environment)


def _extended() -> bool:
    """Whether an extension is installed, or was loaded into this process."""
    loaded = getattr(sys.modules.get(_EXTENSIONS), "loaded", None)
    return bool(entry_points(group=GROUP)) or bool(loaded and loaded())


def summary(kept: Kept, output: Path) -> str:
    """What is said when it was written to `output`."""
    return f"wrote {output} ({output.stat().st_size} bytes; {kept.about})"


def about(mode: str, functions: Sequence[str]) -> str:
    """A bundle's mode and functions, in words."""
    return f"{mode}: {', '.join(functions)}"
