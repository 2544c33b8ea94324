"""The objects of our own kernels: C compiled ahead, by instruction set.

`make kernels` compiles the sources in `native/` to `objects/<source>-<set>.o`, which
the package has: a machine that compiles a program needs no C compiler, and a bundle
has what it calls inside.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "objects"
_DIGITS = 12
_NAMED = re.compile(rf'path = "(pcp-[0-9a-f]{{{_DIGITS}}}-([\w-]+\.o))"')

#: Instruction sets and the format of IREE's executables that carries them.
FORMATS: dict[str, str] = {
    "x86-64": "embedded-elf-x86_64",
    "x86-64-v3": "embedded-elf-x86_64",
    "x86-64-v4": "embedded-elf-x86_64",
    "x86-64-v4-vnni": "embedded-elf-x86_64",
    "aarch64": "embedded-elf-arm_64",
}

#: Sets that a processor with the first one has too, best first.
CONTAINED: dict[str, tuple[str, ...]] = {
    "x86-64": ("x86-64",),
    "x86-64-v3": ("x86-64-v3", "x86-64"),
    "x86-64-v4": ("x86-64-v4", "x86-64-v3", "x86-64"),
    "x86-64-v4-vnni": ("x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "x86-64"),
    "aarch64": ("aarch64",),
}


def best(source: str, instructions: str) -> str | None:
    """The best set of those that `instructions` has, for which `source` is compiled."""
    return next((s for s in CONTAINED[instructions] if _path(source, s).exists()), None)


@cache
def attribute(source: str, instructions: str) -> str:
    """The text of `hal.executable.objects` for one object: its file by name.

    IREE 3.13 writes an object's own `data` to an empty file before it links. The name
    has a digest of the content, so that equal texts are equal programs.
    """
    path = _path(source, instructions)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    target = f'#hal.executable.target<"llvm-cpu", "{FORMATS[instructions]}">'
    held = f'#hal.executable.object<{{path = "pcp-{digest}-{path.name}"}}>'
    return f"#hal.executable.objects<{{{target} = [{held}]}}>"


def put_beside(text: str, folder: Path) -> None:
    """Copy the objects that a program's text names to where IREE is to find them."""
    for name, source in set(_NAMED.findall(text)):
        (folder / name).write_bytes((_FOLDER / source).read_bytes())


def compiled() -> Sequence[Path]:
    """All objects, by name."""
    return sorted(_FOLDER.glob("*.o"))


def _path(source: str, instructions: str) -> Path:
    return _FOLDER / f"{source}-{instructions}.o"
