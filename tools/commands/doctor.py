"""pcp doctor: is this machine ready, and what to do where it is not.

What counts as a problem depends on what the machine is for: a worker needs no
compiler. Without --for that is judged by whether any of the compiler is installed.

pcp doctor
pcp doctor --for worker
pcp doctor --for shepherd --port 48148 --all-targets
"""

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.compiler.options import CompileOptions
from pcp.errors import MissingPackage, PcpError, counted, install
from pcp.runtime.transport import mover
from pcp.tools.support.cache_folder import cache_folder
from pcp.tools.support.command import Parser, run
from pcp.tools.support.signals import in_order
from pcp.version import DISTRIBUTION

PROG = "pcp doctor"
MINIMUM_PYTHON = (3, 11)
ENOUGH_BYTES = 2 << 30  # a bundle for every target and a few checkpoints
PROBE_S = 60.0

ROLES: dict[str, frozenset[str]] = {
    "worker": frozenset({"core", "processor", "port"}),
    # It compiles a model for the targets of its workers.
    "shepherd": frozenset({"core", "port", "compiler"}),
    "compile": frozenset({"core", "compiler"}),
}
"""What a machine is for -> what it needs for that."""

OK, NOTE, BAD = "ok", "note", "BAD"


@dataclass(frozen=True)
class Finding:
    """One line: how bad, about what, what was found, and what to do."""

    level: str
    about: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.level:<5} {self.about:<22} {self.found}{advice}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 when something needed is missing."""
    return run(PROG, in_order(_main), argv)


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    roles = tuple(dict.fromkeys(flags.roles)) or usual_roles()
    needed = frozenset().union(*(ROLES[role] for role in roles))
    checks: list[Callable[[], Iterator[Finding]]] = [
        python_version,
        stranger,
        lambda: packages(needed),
        loops,
        lambda: drivers(needed),
        caged,
        lambda: port(flags.host, flags.port, needed),
        lambda: space(cache_folder()),
        lambda: targets(None if flags.all_targets else SAMPLE, needed),
    ]
    bad = 0
    for check in checks:
        for finding in check():
            print(finding, flush=True)
            bad += finding.level == BAD
    print(f"{counted(bad, 'problem') if bad else 'ready'} (for: {', '.join(roles)})")
    return 1 if bad else 0


def usual_roles() -> tuple[str, ...]:
    """All where some of the compiler is installed, else a worker's."""
    compiler = (
        name for name, _, extra in requirements(_metadata()) if extra == "compiler"
    )
    return tuple(ROLES) if any(map(_version, compiler)) else ("worker",)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    parser.add_argument(
        "--for",
        dest="roles",
        action="append",
        choices=tuple(ROLES),
        default=[],
        help="what this machine shall do (repeatable); default: by what is installed",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="is this port free?")
    parser.add_argument(
        "--all-targets", action="store_true", help="compile for each one, not a sample"
    )
    return parser


# --- checks ------------------------------------------------------------------


def python_version() -> Iterator[Finding]:
    """The interpreter is new enough."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info >= MINIMUM_PYTHON:
        yield Finding(OK, "python", found)
    else:
        yield Finding(BAD, "python", found, "install Python 3.11 or newer")


STRANGER = "pcp"
"""The distribution of Performance Co-Pilot; pcp itself was called so once."""


def stranger() -> Iterator[Finding]:
    """Another project's package `pcp` beside this one: its files lie among ours."""
    if (version := _version(STRANGER)) is None:
        return
    names = {name for name, *_ in requirements(_metadata(STRANGER))}
    advice = f"pip uninstall {STRANGER}, then {install()}"
    if "iree-base-runtime" in names:
        yield Finding(NOTE, STRANGER, f"{version}, this project's older name", advice)
    else:
        found = f"{version} is another project's, with files of the same names"
        yield Finding(BAD, STRANGER, found, advice)


def packages(needed: Container[str]) -> Iterator[Finding]:
    """What pcp's extras name, installed in the versions they name."""
    lines = _metadata()
    if not lines:
        advice = f"{install()}; its metadata say which versions are right"
        found = "not installed, only found on the path"
        yield Finding(NOTE, DISTRIBUTION, found, advice)
    for name, wanted, extra in requirements(lines):
        level = BAD if (extra or "core") in needed else NOTE
        version, advice = _version(name), install(extra)
        if version is None:
            yield Finding(level, name, f"not installed{_use(extra)}", advice)
        elif wanted and version.partition("+")[0] != wanted:
            yield Finding(level, name, f"{version}, tested with {wanted}", advice)
        else:
            yield Finding(OK, name, version)


def _metadata(distribution: str = DISTRIBUTION) -> Sequence[str]:
    """The requirements in pcp's metadata; none where it is not installed."""
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _use(extra: str) -> str:
    """The roles that need an extra's packages."""
    users = [role for role, needs in ROLES.items() if extra in needs]
    return f" (for: {', '.join(users)})" if users else ""


def requirements(lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """`(package, exact version or "", extra or "")` of metadata's requirements."""
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        exact = re.search(r"==\s*([^,\s]+)", requirement)
        if name is None or name.group() == DISTRIBUTION:
            continue
        if extra is None or extra[1] != "dev":
            yield name.group(), exact[1] if exact else "", extra[1] if extra else ""


_PROBE = """
import json, sys
import iree.runtime as rt
try:
    devices = rt.get_driver(sys.argv[1]).query_available_devices()
    print(json.dumps([device["name"] for device in devices]))
except Exception as error:
    print(json.dumps(str(error)))
"""
_DRIVER_ADVICE = {
    "cuda": "for NVIDIA: install the driver, so that libcuda.so is found",
    "hip": "for AMD: install ROCm, so that libamdhip64.so is found",
    "vulkan": "for Vulkan: install the loader (libvulkan.so.1) and a driver",
}


def loops() -> Iterator[Finding]:
    """Whether bulk data moves by the compiled loops, or by those in Python."""
    if mover.compiled is not None:
        yield Finding(OK, "data loops", "compiled")
    else:
        advice = "install a C compiler, then pcp again: sums over TCP get faster"
        which = "in Python"
        if mover.stale:
            which += ": the compiled ones are of another version"
            advice = "install pcp again: pip install -e . in a checkout"
        yield Finding(NOTE, "data loops", which, advice)


def drivers(needed: Container[str]) -> Iterator[Finding]:
    """Each driver of IREE's runtime, asked in a process of its own: one may crash."""
    for name in ("local-task", "cuda", "hip", "vulkan"):
        found = _probe(name)
        if isinstance(found, list) and found:
            yield Finding(OK, f"driver {name}", f"{len(found)}: {', '.join(found)}")
            continue
        why = "no device" if isinstance(found, list) else _first_reason(found)
        level = BAD if name == "local-task" and "processor" in needed else NOTE
        yield Finding(level, f"driver {name}", why, _DRIVER_ADVICE.get(name, ""))


_CAGE = """
import json
from pcp.runtime.cage import cage
held = cage.enter()
print(json.dumps([bool(held.program and held.files), str(held)]))
"""


def caged() -> Iterator[Finding]:
    """What the kernel keeps from a worker's native code; tried by a process."""
    found = _answer(_CAGE)
    whole, said = found if isinstance(found, list) else (False, found)
    advice = "Linux 5.13 with Landlock holds all of it; or run workers in a container"
    yield Finding(OK if whole else NOTE, "cage", said, "" if whole else advice)


def _probe(driver: str) -> list[str] | str:
    return _answer(_PROBE, driver)


def _answer(script: str, *words: str) -> Any:
    """What a script prints as JSON; where it prints none, why, in words."""
    command = [sys.executable, "-c", script, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_S:.0f} s"
    try:
        return strict_json.parse(done.stdout)
    except ValueError:
        return f"died with {done.returncode}: {done.stderr.strip()[-200:]}"


def _first_reason(error: str) -> str:
    """IREE's status without its source position: `UNAVAILABLE; ...`."""
    match = re.search(r"[A-Z_]{4,}; [^;:]*", error)
    return " ".join((match.group() if match else error).split())[:120]


def port(host: str, number: int, needed: Container[str]) -> Iterator[Finding]:
    """A shepherd could listen here; a worker listens for its peers."""
    about = f"port {number or 'any'}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(1)
        except (OSError, OverflowError) as error:
            why = f"{host}: {getattr(error, 'strerror', None) or error}"
            level = BAD if "port" in needed else NOTE
            yield Finding(level, about, why, "choose another with --port")
            return
        yield Finding(OK, about, f"free on {host}")


def space(folder: Path | None) -> Iterator[Finding]:
    """The cache can be written, and there is room."""
    if folder is None:
        yield Finding(NOTE, "cache", "off", "compiling again takes its time again")
        return
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        yield Finding(NOTE, "cache", f"{existing} is read-only", "set PCP_CACHE")
    elif free < ENOUGH_BYTES:
        yield Finding(NOTE, "cache", f"{free >> 20} MiB free", "make room or move it")
    else:
        yield Finding(OK, "cache", f"{folder}, {free >> 30} GiB free")


# --- what compiles here ------------------------------------------------------

SAMPLE = ("cpu", "cpu:host", "sm_90a", "gfx942", "vulkan", "metal")

DTYPES = ("f32", "bf16")

_PRODUCT = """
  %NAME = stablehlo.dot_general %xNAME, %yNAME, contracting_dims = [1] x [0]
      : (tensor<64x64xNAME>, tensor<64x64xNAME>) -> tensor<64x64xNAME>
"""


def _products(dtypes: Sequence[str]) -> str:
    """A program of one product in each type."""
    matrix = "tensor<64x64x{}>".format
    given = (f"%{side}{d}: {matrix(d)}" for d in dtypes for side in "xy")
    made, types = (", ".join(map(f, dtypes)) for f in ("%{}".format, matrix))
    body = "".join(_PRODUCT.replace("NAME", dtype) for dtype in dtypes)
    head = f"func.func @main({', '.join(given)}) -> ({types})"
    return f"{head} {{{body}  return {made} : {types}\n}}\n"


def targets(names: Sequence[str] | None, needed: Container[str]) -> Iterator[Finding]:
    """A matrix product compiles for each target (None: every one there is).

    In f32 and in bf16: a target that lacks the second is no target for such a model.
    No such device is needed.
    """
    level = BAD if "compiler" in needed else NOTE
    try:
        from pcp.compiler.targets import TARGETS
    except MissingPackage as error:
        yield Finding(level, "targets", "none compiles here", str(error))
        return
    for name in names or TARGETS:
        problems = {}
        if _problem(name, *DTYPES):  # both at once, as a rule: the compiler starts once
            problems = {d: why for d in DTYPES if (why := _problem(name, d))}
        if not problems:
            yield Finding(OK, f"target {name}", f"compiles {' and '.join(DTYPES)}")
            continue
        worst = level if name == "cpu" else NOTE
        for dtype, why in problems.items():
            yield Finding(worst, f"target {name}", f"{dtype}: {why}")


def _problem(name: str, *dtypes: str) -> str:
    """Why products of these types do not compile for a target; "" if they do."""
    from pcp.compiler import driver
    from pcp.dialect.context import parse

    options = CompileOptions(targets=(name,), mode="forward", timeout=PROBE_S)
    try:
        driver.compile(parse(_products(dtypes)), options)
    except PcpError as error:
        return str(error)
    return ""
