"""Compiled modules, and whole bundles, by content: the same input, the same bytes.

A module goes by its text, flags and compiler (`key`). A bundle goes by all that decides
it (`bundle_key`): then none of our passes runs. A bundle that is not the one that a
compilation would give is a wrong program which nobody notices, so what is in doubt is
in the key.

An entry is a file named by its key: a line with the SHA-256 of the body, then
the body. A damaged entry counts as absent and is written again. Entries appear
whole (written aside, then renamed), so several compilers may share a folder.

Old entries go by `Cache.prune`, and not by a library: those that keep a folder small
(diskcache) have a database beside it, which each compiler would have to lock and which
knows nothing of files that people copy in or delete; JAX's cache has its own rule too.
"""

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pcp import whole_file
from pcp.compiler.options import CompileOptions

MODULE, BUNDLE = ".vmfb", ".bundle"
KINDS = {MODULE: "module", BUNDLE: "bundle"}
DEFAULT_BYTES = 4 << 30


def key(text: str | bytes, flags: Sequence[str | bytes], compiler: str) -> str:
    """The name of what compiling `text` with `flags` by `compiler` gives."""
    digest = hashlib.sha256()
    for part in (compiler, *flags, text):
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


#: Options that decide where and when it is compiled, and not what comes out.
FREE = frozenset({"cache", "keep_ir", "jobs", "timeout", "report", "timed"})

#: Of what we compile with: another one may give other bytes.
PACKAGES = ("torch-mlir", "iree-base-compiler", "numpy", "pydantic", "pydantic-core")

#: Variables that compilers look at: each that begins so.
VARIABLES = ("IREE", "MLIR", "LLVM", "TORCH_MLIR", "CUDA", "ROCM", "HIP")

#: What Linux says of a processor that another kind of it says otherwise.
_KIND = ("vendor", "cpu family", "model", "stepping", "cache", "flags", "Feat", "CPU")
_CPUINFO = Path("/proc/cpuinfo")
_HOME = Path(whole_file.__file__).parent  # of all that is pcp


def bundle_key(options: CompileOptions, environment: Mapping[str, str]) -> str | None:
    """The name of the bundle of the file `options.source`; reads all that decides it.

    Another file with the same content has another one: errors and reports name it.
    None where something cannot be known: such a bundle is not kept.
    """
    said: list[str | bytes] = []
    try:
        model = Path(options.source).read_bytes()
        for field in fields(options):
            if field.name not in FREE:
                said += [field.name, *_told(field.name, getattr(options, field.name))]
        for name in PACKAGES:
            said += [name, *_installed(name)]
    except (OSError, PackageNotFoundError):
        return None
    for name in sorted(environment):
        if name.startswith(VARIABLES):
            said += [name, environment[name]]
    return key(model, [*said, *_machine(), *_own_code()], "bundle 1")


def _told(name: str, value: object) -> Iterator[str | bytes]:
    """An option as text, and the content of a file that it names."""
    yield f"{type(value).__name__} {value}"
    if name in ("cluster", "tuning") and value is not None:
        yield Path(str(value)).read_bytes()
    if name == "sharding" and value not in (None, "auto", "none"):
        yield Path(str(value)).read_bytes()


def _installed(package: str) -> Iterator[str]:
    """Its version, and the digests that its installer wrote down of its files."""
    found = distribution(package)
    record = found.read_text("RECORD")
    if record is None:
        raise PackageNotFoundError(package)
    yield from (found.version, record)


def _machine() -> Iterator[str]:
    """The interpreter, and the first processor as Linux has it; else the machine."""
    yield from (sys.version, platform.machine())
    try:
        first, _, _ = _CPUINFO.read_text().partition("\n\n")
    except OSError:
        yield str(platform.uname())
        return
    yield "\n".join(x for x in first.splitlines() if x.startswith(_KIND))


def _own_code() -> Iterator[str | bytes]:
    """All files of pcp as they are now, compiled kernels included."""
    for folder, inner, names in os.walk(_HOME, followlinks=True):
        inner[:] = sorted(name for name in inner if name != "__pycache__")
        for name in sorted(names):
            path = Path(folder, name)
            yield str(path.relative_to(_HOME))
            yield path.read_bytes()


@dataclass(frozen=True)
class Cache:
    """A folder of entries; the oldest go when it holds over `max_bytes`.

    `kind` is that of the entries which are read and written: MODULE or BUNDLE.
    """

    folder: Path
    max_bytes: int = DEFAULT_BYTES
    kind: str = MODULE

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None."""
        path = self._path(key)
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the age that decides what goes first
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store `body`, whole or not at all; raises OSError when it cannot."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(path, mode=0o600) as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        self.prune(keep=path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + self.kind)

    def entries(self) -> list[tuple[int, int, Path]]:
        """When each was used last (in ns), its bytes and its file; the oldest first.

        Of all kinds.
        """
        found = []
        for path in self.folder.glob("*/*"):
            if path.suffix not in KINDS:
                continue
            with contextlib.suppress(OSError):  # another process may prune too
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return sorted(found)

    def prune(self, keep: Path | None = None) -> list[Path]:
        """Remove the entries used longest ago, not `keep`, until the folder fits."""
        entries, gone = self.entries(), []
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                gone.append(path)
                total -= size
        return gone
