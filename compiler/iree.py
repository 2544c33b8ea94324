"""iree-compile as a function: MLIR text and flags in, a module's bytes out.

It runs in a process of its own, so that a crash or an endless loop in it is an
error here. What it prints on failure, the whole module often, is cut to the
first error: what, where, and which op.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakSet

from pcp.compiler import fences
from pcp.errors import CompileError, MissingPackage, install
from pcp.passes.kernels import objects
from pcp.passes.legalize.ownership import keep_carries

PACKAGE = "iree-base-compiler"
MAX_MESSAGE = 300  # characters of an error that a person reads

# What every target gets: no bytes in the module that only a debugger reads, and ops in
# the program's order. Otherwise IREE moves groups of ops that do not need each other's
# results ("waves"), and with them an update of a tensor in place in front of others
# that read the tensor: `return x, f(y), update(x)` gave the update twice. On CPUs the
# order costs nothing, since each op has all threads.
COMMON_FLAGS = (
    "--iree-input-type=auto",
    "--iree-vm-bytecode-module-strip-debug-ops",
    "--iree-stream-partitioning-favor=debug",
)

# Where a program branches, IREE may record a copy of what a loop has left into a
# command buffer that is told of no buffers: the call ends in "indirect buffer
# reference slot 0 is out range". So buffers are named where a command is recorded; a
# scan of 200 small steps takes the same 3.4 ms either way. What is made of constants
# alone comes to the same end where a loop starts from it (`jax.random.uniform` in f16
# of a constant key), so in such programs it is computed where it stands.
DIRECT = ("--iree-hal-indirect-command-buffers=false",)
IN_PLACE = ("--iree-opt-const-expr-hoisting=false",)

# Where `pcp-keep-carries` has said of one tensor where it lies, IREE finds out what
# that says of others, an op at a time, and gives up after 128.
FAR = ("--iree-stream-affinity-solver-max-iterations=1000000",)

# IREE makes one dispatch of two values of which a loop reads one and ops before the
# loop, in their turn, the other: it finds no order then ("circular dependency"; QR of
# complex64, the gradient of the exponential integral). Where it says so, what several
# ops read is made apart, which costs a dispatch or two and changes no number.
APART = ("--iree-dispatch-creation-fuse-multi-use=false",)
_CIRCLE = "circular dependency"
_BRANCHES = re.compile(r"\bstablehlo\.(while|case|if)\b")


def common_flags(text: str) -> tuple[str, ...]:
    """The flags that a program is compiled with for every target."""
    if not _BRANCHES.search(text):
        return COMMON_FLAGS
    placed = FAR if keep_carries.TRANSFER in text else ()
    return COMMON_FLAGS + DIRECT + IN_PLACE + placed


_ERROR = re.compile(
    r"^((?P<where>.+?:\d+:\d+|<unknown>:0|[^:\s]+): )?error: (?P<what>.*)$"
)
_IGNORED_CPU = re.compile(r"'([^']*)' is not a recognized processor")
# IREE ends many a message with the whole op or target description.
_TAIL = re.compile(r"\s*(:\s*%\d+(:\d+)? =|:\s*\"|for backend #|in #hal\.|#hal\.).*$")


class Running:
    """The compilers that run for one request, so that all can be ended at once."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        _requests.add(self)

    def start(self, command: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        """Start one more; a `CompileError` after `stop`."""
        with self._lock:
            if self._stopped:
                raise CompileError("given up: another target failed first")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            self._processes.add(process)
            return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """It has ended."""
        with self._lock:
            self._processes.discard(process)

    def stop(self) -> None:
        """End them all, and start no more: their callers get errors."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()


def _environment() -> dict[str, str]:
    """Ours, without what is said to the heap of a process that makes steps."""
    return {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}


_requests: WeakSet[Running] = WeakSet()


def stop_all() -> None:
    """End the compilers of all requests that are under way, in any thread."""
    for running in list(_requests):
        running.stop()


class Failure(CompileError):
    """iree-compile refused the text: `what` at `where` (`line:column` or "")."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.where = where


class LateImport(Failure):
    """IREE compiled the text to a program that may wait for itself."""


@cache
def version() -> str:
    """The installed compiler's version."""
    try:
        return package_version(PACKAGE)
    except PackageNotFoundError as error:
        raise MissingPackage(_MISSING) from error


_MISSING = f"iree-compile is not installed; run {install('compiler')}"


@cache
def binary() -> Path:
    """The compiler's executable inside the installed package."""
    try:
        spec = find_spec("iree.compiler")
    except ModuleNotFoundError:
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        for name in ("iree-compile", "iree-compile.exe"):
            path = Path(place, "_mlir_libs", name)
            if path.is_file():
                return path
    raise MissingPackage(_MISSING)


def compile_text(
    text: str,
    flags: Sequence[str],
    *,
    timeout: float,
    running: Running | None = None,
) -> bytes:
    """Compile MLIR `text`; `timeout` in seconds.

    Raises `Failure` with the first error or the signal it died of, `LateImport` when
    the program would call imports of `pcp_rt` before their operands are on their way,
    `CompileError` when it took too long.
    """
    running = running or Running()
    every = (*common_flags(text), *flags)
    try:
        return _compiled(text, every, timeout, running)
    except Failure as error:
        if _CIRCLE not in error.what:
            raise
    return _compiled(text, (*every, *APART), timeout, running)


def _compiled(
    text: str, flags: Sequence[str], timeout: float, running: Running
) -> bytes:
    with tempfile.TemporaryDirectory(prefix="pcp-compile-") as folder:
        # The source's name ends up in the module: the same one each time.
        source, output = Path(folder, "module.mlir"), Path(folder, "module.vmfb")
        source.write_text(text)
        objects.put_beside(text, Path(folder))
        command = [str(binary()), source.name, "-o", output.name]
        command += flags
        dumps = Path(folder, "functions") if fences.calls_imports(text) else None
        command += fences.flags(dumps) if dumps else []
        code, stderr = _run(command, folder, timeout, running)
        _refuse_unknown_cpu(stderr)
        if code < 0:
            name = signal.Signals(-code).name
            raise Failure(f"iree-compile died of {name}{_last(stderr)}", "")
        if code != 0 or not output.is_file():
            raise first_error(stderr)
        if dumps:
            _refuse_late(dumps)
        return output.read_bytes()


def _refuse_late(dumps: Path) -> None:
    if late := fences.late_imports(dumps):
        raise LateImport(
            f"IREE calls {', '.join(late)} before the operands are on their way: the "
            "program would wait for itself",
            "",
        )


def first_error(stderr: str) -> Failure:
    """The first error line of iree-compile's output, cut for a person.

    Where there is one, the first that says its place: what LLVM says first is less.
    """
    found = [
        Failure(_cut(_TAIL.sub("", match["what"])), position[1] if position else "")
        for line in stderr.splitlines()
        if (match := _ERROR.match(line))
        for position in [re.search(r"(\d+:\d+)$", match["where"] or "")]
    ]
    if not found:
        return Failure(f"iree-compile failed{_last(stderr)}", "")
    return next((each for each in found if each.where), found[0])


def _refuse_unknown_cpu(stderr: str) -> None:
    """IREE compiles on for a generic processor when it does not know the name."""
    if match := _IGNORED_CPU.search(stderr):
        known = re.search(r"List of accepted CPUs: (.*)", stderr)
        listed = f" (known: {known.group(1)})" if known else ""
        raise CompileError(f"LLVM knows no processor {match.group(1)!r}{listed}")


def _last(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f": {_cut(lines[-1])}" if lines else ""


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."


def _run(
    command: Sequence[str], folder: str, timeout: float, running: Running
) -> tuple[int, str]:
    with _child(command, folder, running) as process:
        try:
            _, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                f"iree-compile took longer than {timeout:g} s; "
                "raise the limit with --timeout"
            ) from error
        return process.returncode, stderr.decode(errors="replace")


@contextlib.contextmanager
def _child(
    command: Sequence[str], folder: str, running: Running
) -> Iterator[subprocess.Popen[bytes]]:
    """A child that does not outlive the block, however we leave it."""
    process = running.start(command, folder)
    try:
        yield process
    finally:
        process.kill()  # nothing, when it has ended
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
        running.forget(process)
