"""The objects of our own kernels: C and CUDA compiled ahead, by instruction set.

`make kernels` compiles the sources in `native/` to `objects/<source>-<set>.o`, and
CUDA's to PTX, all of it in one file; the package has them: a machine that compiles a
program needs no compiler of these, and a bundle has what it calls inside.
"""

import hashlib
import lzma
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "objects"
_DIGITS = 12
_NAMED = re.compile(rf'path = "(pcp-[0-9a-f]{{{_DIGITS}}}-([\w-]+\.(?:o|ptx)))"')
_PTX = "cuda.ptx.xz"
ENTRY = re.compile(
    r"^\.visible \.entry (\w+)\(.*?(?=^\.visible \.entry|\Z)", re.S | re.M
)

#: Instruction sets and the format of IREE's executables that carries them.
FORMATS: dict[str, str] = {
    "x86-64": "embedded-elf-x86_64",
    "x86-64-v3": "embedded-elf-x86_64",
    "x86-64-v4": "embedded-elf-x86_64",
    "x86-64-v4-vnni": "embedded-elf-x86_64",
    "aarch64": "embedded-elf-arm_64",
    "sm_80": "cuda-nvptx-fb",
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
        if source.endswith(".ptx"):
            content = ptx()[source.removesuffix(".ptx")].encode()
        else:
            content = (_FOLDER / source).read_bytes()
        (folder / name).write_bytes(content)


@cache
def ptx() -> dict[str, str]:
    """The PTX of each CUDA kernel, by name: for sm_80, which later GPUs run, too."""
    text = lzma.decompress((_FOLDER / _PTX).read_bytes()).decode()
    head = text[: text.index(".visible .entry")]
    return {found[1]: head + found[0] for found in ENTRY.finditer(text)}


@cache
def ptx_attribute(function: str) -> str:
    """The text of `hal.executable.objects` for one CUDA kernel: its PTX by name."""
    digest = hashlib.sha256(ptx()[function].encode()).hexdigest()[:_DIGITS]
    target = f'#hal.executable.target<"cuda", "{FORMATS["sm_80"]}">'
    held = f'#hal.executable.object<{{path = "pcp-{digest}-{function}.ptx"}}>'
    return f"#hal.executable.objects<{{{target} = [{held}]}}>"


def compiled() -> Sequence[Path]:
    """All objects, by name."""
    return sorted(_FOLDER.glob("*.o"))


def _path(source: str, instructions: str) -> Path:
    return _FOLDER / f"{source}-{instructions}.o"
