"""Checkpoints: a committed round on disk, whole or not at all.

    round_00000010/
      parameters.safetensors   the shared parameters, by their names in the model
      outer.safetensors        the outer algorithm's shared state, e.g. momentum.<name>
      state.safetensors        the program's state, by its names, if it has any
      worker_0.safetensors     inner optimizer state of each member, by rank
      private_0.safetensors    outer state of its own, by rank, if it has any
      state.json               round, digest, tokens, data cursor, seed, tokenizer,
                               and in which tensors a number is not finite
      SHA256SUMS.json          size and SHA-256 of each file above
      signatures.json          signatures of those sums, of a run with identities

Tensors of more than 4 GiB together are in files <kind>-00001-of-00003.safetensors, with
the file of each in <kind>.safetensors.index.json. Files are written and read a tensor
at a time: memory has the state itself, and no copy of it.

A checkpoint is written to a hidden folder, fsynced and renamed; a crash leaves the old
checkpoints and no part of a new one. An old checkpoint of the same round, from before a
rewind, is renamed away first, and comes back if a crash left none in its place. Reading
compares every file with the sums; `newest` skips damaged checkpoints and reports them.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pcp import outside, signing, strict_json
from pcp.errors import StateMismatch
from pcp.outside import MAX_JSON_BYTES
from pcp.runtime.transport.signatures import Signer
from pcp.training.storage import safetensors_io
from pcp.training.storage.nonfinite import tensors as tensors_with
from pcp.training.storage.safetensors_io import Arrays
from pcp.whole_file import sync_folder

FORMAT = "pcp-checkpoint"
VERSION = 2
SUMS = "SHA256SUMS.json"
FOLDER = "checkpoints"
SHARD_BYTES = 4 << 30
"""The most bytes of the tensors of one file; more are in several, with an index."""
_INDEX = f".safetensors{safetensors_io.INDEX}"
_HIDDEN = ".writing-"
_REPLACED = ".replaced-"


@dataclass
class Checkpoint:
    """The state of a run after a committed round."""

    round: int
    parameters: Arrays
    outer: Arrays
    """The outer state, which all members share."""
    workers: list[Arrays] = field(default_factory=list)
    """The inner optimizer's state, by rank of the round's group."""
    private: list[Arrays] = field(default_factory=list)
    """The private outer state of each member, by rank."""
    state: Arrays = field(default_factory=dict)
    """The state of the program, which all members share."""
    info: dict[str, Any] = field(default_factory=dict)
    """Values for JSON: digest, tokens, data cursor, seed, tokenizer."""


def nonfinite(checkpoint: Checkpoint) -> list[str]:
    """The tensors in which a number is NaN or infinite, by file and name."""
    return [
        f"{kind}.{name}"
        for kind, arrays in _groups(checkpoint)
        for name in tensors_with(arrays)
    ]


def _groups(checkpoint: Checkpoint) -> Iterator[tuple[str, Arrays]]:
    """The arrays of each file, by the file's name without its suffix."""
    yield "parameters", checkpoint.parameters
    yield "outer", checkpoint.outer
    if checkpoint.state:
        yield "state", checkpoint.state
    for rank, arrays in enumerate(checkpoint.workers):
        yield f"worker_{rank}", arrays
    for rank, arrays in enumerate(checkpoint.private):
        if arrays:
            yield f"private_{rank}", arrays


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes | Arrays]]:
    """The contents of each file; several files for more than `SHARD_BYTES`."""
    for kind, arrays in _groups(checkpoint):
        shards = safetensors_io.shards(arrays, SHARD_BYTES)
        if len(shards) == 1:
            yield f"{kind}.safetensors", arrays
            continue
        index: dict[str, str] = {}
        for i, shard in enumerate(shards, 1):
            name = f"{kind}-{i:05}-of-{len(shards):05}.safetensors"
            index |= dict.fromkeys(shard, name)
            yield name, shard
        yield (
            f"{kind}{_INDEX}",
            strict_json.dumps({"weight_map": index}, indent=1).encode(),
        )
    state = {
        "format": FORMAT,
        "version": VERSION,
        "round": checkpoint.round,
        "workers": len(checkpoint.workers),
        **checkpoint.info,
    }
    yield "state.json", strict_json.dumps(state, indent=1).encode()


def save(
    run: str | Path,
    checkpoint: Checkpoint,
    keep: int = 3,
    spared: Collection[int] = (),
    signer: Signer | None = None,
) -> Path:
    """Write a checkpoint under the run's folder and drop all but `keep` newest.
    It is signed if there is a `signer`. Checkpoints of the rounds `spared` stay.
    `OSError` where the disk refuses; the written part is removed then. Checkpoints of
    later rounds, from before a rewind, are not counted, and stay.
    """
    parent = Path(run) / FOLDER
    if not parent.exists():
        parent.mkdir(parents=True)
        sync_folder(parent.parent)
    _bring_back(parent)
    final = parent / f"round_{checkpoint.round:08d}"
    for abandoned in [
        *parent.glob(f"{_HIDDEN}*"),
        *_surplus(run, final, max(1, keep), spared),
    ]:
        shutil.rmtree(abandoned, ignore_errors=True)
    hidden = parent / f"{_HIDDEN}{checkpoint.round}"
    try:
        _write_all(hidden, checkpoint, signer)
        _put(hidden, final)
    except OSError:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    for old in _surplus(run, final, max(0, keep - 1), spared):
        shutil.rmtree(old, ignore_errors=True)
    return final


def _surplus(
    run: str | Path, final: Path, kept: int, spared: Collection[int]
) -> list[Path]:
    """The checkpoints before `final` that are dropped, newest first."""
    before = [folder for folder in folders(run) if folder < final][kept:]
    return [folder for folder in before if round_of(folder) not in spared]


def _write_all(folder: Path, checkpoint: Checkpoint, signer: Signer | None) -> None:
    folder.mkdir()
    sums = {}
    for name, content in _files(checkpoint):
        sums[name] = _write(folder / name, content)
    summed = _write(folder / SUMS, strict_json.dumps(sums, indent=1).encode())
    if signer is not None:
        signature = signer.sign(signing.CHECKPOINT, summed["sha256"])
        _write(folder / signing.MEMBER, signing.dump([signature]))
    sync_folder(folder)


def _put(hidden: Path, final: Path) -> None:
    """Give a written folder its name; an older folder of that name is removed after."""
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():  # the same round again, after a rewind
        final.rename(replaced)
    hidden.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _bring_back(parent: Path) -> None:
    """Undo a replacement that a crash interrupted."""
    for replaced in parent.glob(f"{_REPLACED}*"):
        final = parent / replaced.name.removeprefix(_REPLACED)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(final)


def folders(run: str | Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    parent = Path(run) / FOLDER
    found = {folder.name: folder for folder in parent.glob(f"{_REPLACED}*")}
    named = {f"{_REPLACED}{f.name}": f for f in parent.glob("round_*")}
    return [folder for _, folder in sorted((found | named).items(), reverse=True)]


def round_of(folder: Path) -> int:
    """The round of a checkpoint's folder."""
    return int(folder.name.rpartition("_")[2])


def load(folder: str | Path) -> Checkpoint:
    """Read and verify one checkpoint; `StateMismatch` names a bad file."""
    folder = Path(folder)
    sums = _json(folder / SUMS, _read(folder / SUMS))
    for name, entry in sums.items():
        plain = name.isascii() and name.isprintable()
        if name != Path(name).name or not plain:
            raise StateMismatch(f"{folder / SUMS}: {name!r} is no file of the folder")
        _verify(folder / name, entry)
    if "state.json" not in sums:
        raise StateMismatch(f"{folder}: the checkpoint has no state.json")
    state = _json(folder / "state.json", _read(folder / "state.json"))
    if state.pop("format", None) != FORMAT or state.pop("version", None) != VERSION:
        raise StateMismatch(f"{folder}: no checkpoint of this version of pcp")
    number, count = (state.pop(key, None) for key in ("round", "workers"))
    if not (isinstance(number, int) and isinstance(count, int)):
        raise StateMismatch(f"{folder / 'state.json'}: names no round, or no workers")

    def arrays(kind: str) -> Arrays:
        name = f"{kind}.safetensors"
        if f"{kind}{_INDEX}" in sums:
            name = f"{kind}{_INDEX}"
            for shard in safetensors_io.indexed(folder / name):
                if shard.name not in sums:
                    raise StateMismatch(f"{folder}: the checkpoint has no {shard.name}")
        elif name not in sums:
            raise StateMismatch(f"{folder}: the checkpoint has no {name}")
        return safetensors_io.read(folder / name)

    def perhaps(kind: str) -> Arrays:
        there = f"{kind}.safetensors" in sums or f"{kind}{_INDEX}" in sums
        return arrays(kind) if there else {}

    return Checkpoint(
        round=number,
        parameters=arrays("parameters"),
        outer=arrays("outer"),
        workers=[arrays(f"worker_{rank}") for rank in range(count)],
        private=[perhaps(f"private_{rank}") for rank in range(count)],
        state=perhaps("state"),
        info=state,
    )


def signatures(folder: str | Path) -> tuple[str, tuple[signing.Signature, ...]]:
    """The signed bytes of a checkpoint, and its signatures; `StateMismatch` for damage.

    `load` checks the files against the sums.
    """
    folder = Path(folder)
    digest = hashlib.sha256(_read(folder / SUMS)).hexdigest()
    path = folder / signing.MEMBER
    if not path.exists():
        return digest, ()
    try:
        return digest, signing.parse(_read(path))
    except ValueError as error:
        raise StateMismatch(f"{path}: {error}") from error


def newest(
    run: str | Path,
    at_most: int | None = None,
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    look: Callable[[Path], None] = lambda folder: None,
) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint not after round `at_most`, and refusals.
    `look`, before a folder is read, and `check` raise `StateMismatch` for a whole
    checkpoint that is not to be used.
    """
    refused: list[str] = []
    for folder in folders(run):
        try:
            look(folder)
            checkpoint = load(folder)
            if at_most is not None and checkpoint.round > at_most:
                continue
            check(checkpoint)
        except StateMismatch as error:
            refused.append(f"{error}; trying the checkpoint before it")
            continue
        except Exception as error:  # for any error: the one before may be whole
            what = f"{type(error).__name__}: {error}"
            refused.append(f"{folder}: {what}; trying the checkpoint before it")
            continue
        return checkpoint, refused
    return None, refused


def _write(path: Path, content: bytes | Arrays) -> dict[str, Any]:
    """Write a file to the disk; returns its size and sum."""
    try:
        with open(path, "wb") as file:
            summed = _Summed(file)
            if isinstance(content, bytes):
                summed.write(content)
            else:
                safetensors_io.write(summed, content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # the error of a full disk names no file
        raise OSError(error.errno, error.strerror, str(path)) from error
    return {"bytes": summed.bytes, "sha256": summed.sum.hexdigest()}


class _Summed:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sum, self.bytes = file, hashlib.sha256(), 0

    def write(self, piece: bytes | memoryview, /) -> int:
        self.sum.update(piece)
        written = self._file.write(piece)
        self.bytes += written
        return written


def _read(path: Path) -> bytes:
    try:
        return outside.read_bytes(path, MAX_JSON_BYTES)
    except OSError as error:
        raise StateMismatch(f"{path}: cannot read it: {error.strerror}") from error


def _json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise StateMismatch(f"{path}: damaged: {error}") from error
    if not isinstance(value, dict):
        raise StateMismatch(f"{path}: damaged: not an object")
    return value


def _verify(path: Path, entry: object) -> None:
    if not isinstance(entry, dict):
        raise StateMismatch(f"{path}: its entry in {SUMS} is no object")
    try:
        with outside.open_regular(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StateMismatch(f"{path}: cannot read it: {error.strerror}") from error
    if found != entry.get("sha256"):
        raise StateMismatch(f"{path}: its SHA-256 is not the recorded one")
