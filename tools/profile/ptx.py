"""What stands in the modules of a bundle: kernels, and PTX for NVIDIA's GPUs.

No device is needed.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from pcp.errors import CompileError
from pcp.passes.kernels.objects import ENTRY

_PTX = re.compile(rb"\.version \d+\.\d+\n\.target [^\0]*")
_DISPATCH = re.compile(rb"(?<![\w$])([A-Za-z_][\w$]*_dispatch_\d+_\w+)\0")
_TARGET = re.compile(r"^\.target (sm_[0-9a-z]+)", re.MULTILINE)
_THREADS = re.compile(r"\.(?:max|req)ntid (\d+)(?:, (\d+))?(?:, (\d+))?")
_COUNTED = {
    "wgmma": re.compile(r"^\s+(?:@%p\d+ )?wgmma\.mma_async", re.M),
    "mma": re.compile(r"^\s+(?:@%p\d+ )?mma\.sync", re.M),
    "fma": re.compile(r"^\s+(?:@%p\d+ )?fma\.rn", re.M),
    "cp_async": re.compile(r"^\s+(?:@%p\d+ )?cp\.async\.(?!commit|wait)", re.M),
    "vector_loads": re.compile(r"^\s+(?:@%p\d+ )?ld\.global\S*\.v[248]\.", re.M),
    "loads": re.compile(r"^\s+(?:@%p\d+ )?ld\.global", re.M),
}
"""Instructions of a kernel's text, by what they are called in the table."""
_PRODUCTS = re.compile(r"_(?:batch_)?(?:matmul|matvec|conv|mmt)")
_USED = re.compile(
    r"Function properties for (?P<name>\w+)\n"
    r".*?(?P<spills>\d+) bytes spill stores.*?\n"
    r".*?Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?"
)


@dataclass(frozen=True)
class Used:
    """What ptxas gives a kernel: registers a thread, bytes of shared memory, spills."""

    registers: int
    shared: int
    spills: int


@dataclass(frozen=True)
class Kernel:
    """An entry of PTX. `counts` are its instructions by kind, as they stand there.

    `used` is None where ptxas is not installed.
    """

    name: str
    chip: str
    threads: int
    counts: dict[str, int]
    used: Used | None

    @property
    def without_matrix(self) -> bool:
        """Whether it multiplies matrices without the instructions for that."""
        matrix = self.counts["mma"] + self.counts["wgmma"]
        return bool(_PRODUCTS.search(self.name)) and not matrix

    @property
    def remarks(self) -> list[str]:
        """What is wrong with it at a glance."""
        found = []
        if self.threads == 1:
            found.append("one thread")
        if self.without_matrix:
            found.append("a product without matrix instructions")
        if self.used is not None and self.used.spills:
            found.append(f"{self.used.spills} bytes spilt")
        return found


def chips(module: bytes) -> list[str]:
    """The targets that the PTX of a module names."""
    return sorted({chip for text in _texts(module) for chip in _TARGET.findall(text)})


def names(module: bytes) -> list[str]:
    """The names of a module's kernels in its order, for any target."""
    return list(dict.fromkeys(n.decode() for n in _DISPATCH.findall(module)))


def kernels(module: bytes, *, assemble: bool = True) -> list[Kernel]:
    """The kernels of a module, in its order; none where it holds no PTX.

    Unless `assemble`, ptxas is not asked. CompileError when it refuses the PTX.
    """
    return [k for text in _texts(module) for k in _kernels(text, assemble)]


def _texts(module: bytes) -> Iterator[str]:
    for found in _PTX.finditer(module):
        yield found.group().decode(errors="replace")


def _kernels(text: str, assemble: bool) -> Iterator[Kernel]:
    (chip,) = _TARGET.findall(text)[:1] or [""]
    used = _assembled(text, chip) if assemble else {}
    for found in ENTRY.finditer(text):
        body = found.group()
        threads = _THREADS.search(body)
        sizes = [int(n) for n in threads.groups() if n] if threads else [1]
        counts = {kind: len(rule.findall(body)) for kind, rule in _COUNTED.items()}
        name = found.group(1)
        yield Kernel(name, chip, prod(sizes), counts, used.get(name))


def text(found: Sequence[Kernel]) -> Iterator[str]:
    """The kernels as aligned columns, and how many have which remark."""
    head = ("threads", *_COUNTED, "registers", "shared", "kernel")
    cells: list[tuple[str, ...]] = [head]
    for kernel in found:
        used = ("", "")
        if kernel.used is not None:
            used = (str(kernel.used.registers), str(kernel.used.shared))
        counts = [str(n or "") for n in kernel.counts.values()]
        what = "; ".join([kernel.name, *kernel.remarks])
        cells.append((str(kernel.threads), *counts, *used, what))
    widths = [max(len(row[i]) for row in cells) for i in range(len(head) - 1)]
    for row in cells:
        numbers = (cell.rjust(w) for cell, w in zip(row, widths, strict=False))
        yield "  ".join([*numbers, row[-1]])
    chips = ", ".join(sorted({kernel.chip for kernel in found}))
    alone = sum(kernel.threads == 1 for kernel in found)
    plain = sum(kernel.without_matrix for kernel in found)
    yield (
        f"{len(found)} kernels for {chips}: {alone} of one thread, "
        f"{plain} products without matrix instructions"
    )
    if assembler() is None:
        yield "ptxas is not installed: registers and shared memory are not known"


@cache
def assembler() -> str | None:
    """Where ptxas is; None if it is not installed."""
    return shutil.which("ptxas")


def _assembled(text: str, chip: str) -> dict[str, Used]:
    """What ptxas says of each kernel; nothing without it."""
    binary = assembler()
    if binary is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="pcp-ptx-") as folder:
        source = Path(folder, "kernels.ptx")
        source.write_text(text)
        command = [binary, "-v", f"-arch={chip}", source.name, "-o", "/dev/null"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = (done.stderr.strip() or "it said nothing").splitlines()[0]
        raise CompileError(f"ptxas refuses the PTX for {chip}: {said}")
    return {
        found["name"]: Used(
            int(found["registers"]), int(found["shared"] or 0), int(found["spills"])
        )
        for found in _USED.finditer(done.stderr)
    }
