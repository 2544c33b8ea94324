"""The bundle: one file that holds a compiled program and all a runtime must know.

A bundle is a zip whose members are stored, never compressed:

    manifest.json          what is inside (`Manifest`)
    modules/<target>.vmfb  one compiled module per target
    ir/<name>.mlir         the programs it was compiled from
    signatures.json        who signed the manifest, if anybody did (`pcp.signing`)

The manifest holds the size and the SHA-256 of every other member; the zip's
comment holds the SHA-256 of the manifest. Reading checks all of them, and that
nothing else is in the file, so a bundle is either whole or refused. The same
contents give the same bytes: timestamps and order are fixed.

The compiling half and the running half of pcp meet here only; the manifest's
fields are in `pcp.manifest`.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from pcp import outside, signing, strict_json, whole_file
from pcp.errors import BundleError
from pcp.function_body import First, Part
from pcp.manifest import (
    DTYPE_BITS,
    FORMAT,
    VERSION,
    Collective,
    DeviceProgram,
    Function,
    Manifest,
    Member,
    Mesh,
    Method,
    Mode,
    Module,
    Parameter,
    Role,
    TensorSpec,
    tensor_bytes,
)

__all__ = [
    "DTYPE_BITS",
    "FORMAT",
    "VERSION",
    "Bundle",
    "Collective",
    "DeviceProgram",
    "First",
    "Function",
    "Manifest",
    "Member",
    "Mesh",
    "Method",
    "Mode",
    "Module",
    "Parameter",
    "Part",
    "Role",
    "TensorSpec",
    "manifest_bytes",
    "sha256",
    "tensor_bytes",
]

MANIFEST = "manifest.json"

# Bounds on what a reader accepts, far above what the compiler writes.
MAX_MANIFEST_BYTES = 64 << 20
MAX_MEMBERS = 4096

_MEMBER = re.compile(r"(modules|ir)/[A-Za-z0-9_][A-Za-z0-9._@-]{0,200}")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold


@dataclass(frozen=True)
class Bundle:
    """A manifest and its members' bytes, by name.

    `Bundle.build` computes the digests; `Bundle.read` and `Bundle.from_bytes`
    check them.
    """

    manifest: Manifest
    members: Mapping[str, bytes]
    signatures: tuple[signing.Signature, ...] = field(kw_only=True, default=())
    """Of `digest`; whether they are good is for who trusts to check."""

    def __repr__(self) -> str:
        """One line, without the bytes."""
        size = sum(map(len, self.members.values()))
        functions = ", ".join(self.manifest.functions)
        targets = ", ".join(self.targets) or "no target"
        mode = self.manifest.mode
        return f"<Bundle {mode} for {targets}: {functions}; {size} bytes>"

    @classmethod
    def build(cls, manifest: Manifest, members: Mapping[str, bytes]) -> Self:
        """Put `members` under `manifest`, filling in its digests."""
        for name in members:
            _check_member_name(name, "the new bundle")
        digests = {
            name: Member(sha256=sha256(content), bytes=len(content))
            for name, content in sorted(members.items())
        }
        manifest = manifest.model_copy(update={"members": digests})
        _check_modules(manifest, "the new bundle")
        return cls(manifest, dict(sorted(members.items())))

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest: it names the bundle's whole contents."""
        return sha256(manifest_bytes(self.manifest))

    def signed(self, signature: signing.Signature) -> Self:
        """The same bundle, with one signature more."""
        return replace(self, signatures=(*self.signatures, signature))

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that this bundle holds a module for."""
        return tuple(self.manifest.modules)

    def module(self, target: str | None = None) -> bytes:
        """The compiled module for `target`; None takes the only one there is."""
        modules = self.manifest.modules
        if target is None and len(modules) == 1:
            target = next(iter(modules))
        if target is None or target not in modules:
            if self.manifest.programs:
                raise BundleError(
                    "the bundle is spread over a mesh: it has a program for each of "
                    f"{len(self.manifest.programs)} devices; run it with `pcp run`"
                )
            known = ", ".join(modules) or "none"
            asked = "which target to run must be said" if target is None else ""
            what = asked or f"no module for target {target!r}"
            raise BundleError(
                f"{what} (this bundle holds: {known}); "
                "compile with `pcp-compile MODEL --target TARGET` to add one"
            )
        return self.members[modules[target].file]

    def ir(self, name: str) -> str:
        """The text of `ir/<name>.mlir`."""
        known = [n[3:-5] for n in self.members if n.startswith("ir/")]
        if name not in known:
            listed = ", ".join(known) or "none"
            raise BundleError(f"the bundle holds no IR {name!r} (it has: {listed})")
        return self.members[f"ir/{name}.mlir"].decode()

    def to_bytes(self) -> bytes:
        """The file's bytes: the same bundle gives the same bytes."""
        manifest = manifest_bytes(self.manifest)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            signed = [(signing.MEMBER, signing.dump(self.signatures))]
            members = [(MANIFEST, manifest), *sorted(self.members.items())]
            for name, content in [*members, *(signed if self.signatures else [])]:
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content)
            archive.comment = f"sha256:{sha256(manifest)}".encode()
        return buffer.getvalue()

    def write(self, path: str | Path) -> Path:
        """Write the file, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(path, durable=True) as file:
            file.write(self.to_bytes())
        return path

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and check a file."""
        try:
            content = outside.read_bytes(path)
        except OSError as error:
            raise BundleError(
                f"{path}: cannot read the bundle: {error.strerror}"
            ) from error
        return cls.from_bytes(content, source=str(path))

    @classmethod
    def from_bytes(cls, content: bytes, *, source: str = "bundle") -> Self:
        """Check bytes from a file or a peer; `source` names them in errors."""
        if content[:4] != b"PK\x03\x04":
            raise BundleError(
                f"{source}: not a pcp bundle (no zip file); "
                "make one with `pcp-compile MODEL --target TARGET`"
            )
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return cls._from_archive(archive, source)
        except BundleError:
            raise
        except Exception as error:  # zipfile raises many kinds on damaged bytes
            raise BundleError(
                f"{source}: the bundle is truncated or damaged ({error}); "
                "copy or compile it again"
            ) from error

    @classmethod
    def _from_archive(cls, archive: zipfile.ZipFile, source: str) -> Self:
        entries = _entries(archive, source)
        signatures = _signatures(archive, entries.pop(signing.MEMBER, None), source)
        manifest = _read_manifest(archive, entries, source)
        missing = sorted(set(manifest.members) - set(entries))
        unknown = sorted(set(entries) - set(manifest.members) - {MANIFEST})
        if missing or unknown:
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is not"
            listed = "" if missing else " listed in the manifest"
            raise BundleError(f"{source}: tampered bundle: {what}{listed}")
        _check_modules(manifest, source)
        members = {
            name: _read_member(archive, entries[name], member, source)
            for name, member in sorted(manifest.members.items())
        }
        return cls(manifest, members, signatures=signatures)


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def manifest_bytes(manifest: Manifest) -> bytes:
    """What stands in `manifest.json`."""
    text = strict_json.dumps(manifest.model_dump(mode="json"), indent=1)
    return text.encode() + b"\n"


def _check_member_name(name: str, source: str) -> None:
    if not _MEMBER.fullmatch(name):
        raise BundleError(
            f"{source}: {name!r} is no name for a member "
            "(modules/NAME or ir/NAME, no other folders)"
        )


def _check_modules(manifest: Manifest, source: str) -> None:
    for target, module in manifest.modules.items():
        if module.file not in manifest.members:
            raise BundleError(
                f"{source}: the module for {target!r} is no member: {module.file!r}"
            )


def _entries(archive: zipfile.ZipFile, source: str) -> dict[str, zipfile.ZipInfo]:
    """The zip's directory, once it is sure that reading it is harmless."""
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise BundleError(f"{source}: {len(listed)} members, over {MAX_MEMBERS}")
    entries = {entry.filename: entry for entry in listed}
    if len(entries) != len(listed):
        raise BundleError(f"{source}: tampered bundle: two members have one name")
    for name, entry in entries.items():
        if name not in (MANIFEST, signing.MEMBER):
            _check_member_name(name, source)
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            raise BundleError(f"{source}: tampered bundle: {name!r} is not stored")
    return entries


def _signatures(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo | None, source: str
) -> tuple[signing.Signature, ...]:
    if entry is None:
        return ()
    if entry.file_size > signing.MAX_BYTES:
        raise BundleError(f"{source}: {entry.file_size} bytes of signatures")
    try:
        return signing.parse(archive.read(entry))
    except ValueError as error:
        raise BundleError(f"{source}: tampered bundle: {error}") from error


def _read_manifest(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], source: str
) -> Manifest:
    entry = entries.get(MANIFEST)
    if entry is None:
        raise BundleError(f"{source}: not a pcp bundle: it has no {MANIFEST}")
    if entry.file_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{source}: a manifest of {entry.file_size} bytes")
    content = archive.read(entry)
    try:
        raw = strict_json.parse(content)
    except ValueError as error:
        raise BundleError(f"{source}: damaged manifest: {error}") from error
    _check_version(raw, source)
    if archive.comment != f"sha256:{sha256(content)}".encode():
        raise BundleError(
            f"{source}: truncated or tampered bundle: the manifest's SHA-256 is "
            "not the recorded one; copy or compile it again"
        )
    try:
        manifest = Manifest.model_validate(raw)
        manifest.check_training()
        return manifest
    except BundleError as error:
        raise BundleError(f"{source}: invalid manifest: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "manifest"
        raise BundleError(
            f"{source}: invalid manifest: {where}: {first['msg']}"
        ) from error


def _check_version(raw: object, source: str) -> None:
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise BundleError(f"{source}: not a pcp bundle, by its manifest")
    version = raw.get("version")
    if not isinstance(version, int) or version != VERSION:
        raise BundleError(
            f"{source}: bundle version {version!r}, this pcp reads version {VERSION}; "
            "install a matching pcp or compile the model again"
        )


def _read_member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, member: Member, source: str
) -> bytes:
    name = entry.filename
    if entry.file_size != member.bytes:
        raise BundleError(
            f"{source}: tampered bundle: {name!r} has {entry.file_size} bytes, "
            f"the manifest says {member.bytes}"
        )
    content = archive.read(entry)
    if sha256(content) != member.sha256:
        raise BundleError(
            f"{source}: tampered bundle: {name!r} is not what the manifest's "
            "SHA-256 says; copy or compile it again"
        )
    return content
