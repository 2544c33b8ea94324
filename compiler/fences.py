"""Whether IREE calls every import when its operands are on their way.

An import is called with a fence to wait for, which `stream.timepoint.chain_external`
fills. IREE moves calls as far as values depend on each other, and a fence is no such
value: a call may come to stand in front of what fills its fence. Where something
waits in between, the program hangs, as nobody exchanges anything and no time runs
out. `pcp.passes.collectives.import_order` keeps IREE from it where
that is known to happen; here
what IREE made is read.
"""

import re
from pathlib import Path

#: The last of IREE's passes on single functions in which fences are ops.
PASS = "iree-stream-reuse-allocations"

_FENCE = re.compile(r"\s*(%\w+) = hal\.fence\.create ")
_CALL = re.compile(r"util\.call @pcp_rt\.([^(]+)\(([^)]*)\)")
_FILL = re.compile(r"stream\.timepoint\.chain_external .*=> \((.*)\)")
_VALUE = re.compile(r"%[\w#]+")


def flags(folder: Path) -> tuple[str, ...]:
    """What makes iree-compile leave the functions' IR in `folder`."""
    return (
        f"--mlir-print-ir-after={PASS}",
        f"--mlir-print-ir-tree-dir={folder}",
        "--mlir-elide-elementsattrs-if-larger=8",
        "--mlir-elide-resource-strings-if-larger=8",
    )


def calls_imports(text: str) -> bool:
    """Whether the module that IREE is given has imports of the runtime's."""
    return "@pcp_rt." in text


def late_imports(folder: Path) -> list[str]:
    """The imports that are called too early, in what IREE left in `folder`."""
    texts = [path.read_text() for path in sorted(folder.rglob(f"*{PASS}.mlir"))]
    return [name for text in texts for name in late(text)]


def late(text: str) -> list[str]:
    """The imports in one function whose fence is filled behind their call, or never."""
    made: set[str] = set()
    found: list[str] = []
    for line in text.splitlines():
        if fence := _FENCE.match(line):
            made.add(fence[1])
        elif fill := _FILL.search(line):
            made.difference_update(_VALUE.findall(fill[1]))
        elif call := _CALL.search(line):
            *_, wait, signal = (part.strip() for part in call[2].split(","))
            if wait in made:
                found.append(call[1])
            made.discard(signal)  # filled by the import, when it has the result
    return found
