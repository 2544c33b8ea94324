"""The ledger of a run: its decisions, line by line, on disk before they count.

A JSON object a line, appended and fsynced, with a running number `n`, the SHA-256 of
the line before it, `prev`, and a CRC-32 of the rest of the line, `crc`. A crash can
only tear the last line, which is then dropped. Any other damage is refused. A change, a
removal or an insertion of a line changes the hashes of all lines after it, and so of
the last one. Lines of an older pcp have no `prev`. In a run with identities each line
has the key of the shepherd that wrote it, and its signature, `sig`; the last signature
covers all lines before it. The kinds:

    leader      of several shepherds one leads, in this term, from here on
    begin       the run's constants: samples, quantum, frozen keys, data digest
    started     a shepherd goes on with the run under these settings
    joined      a worker holds the state of a round, and from which source
    round       a round's attempt: its epoch, members by rank, the lease of each
    lease       a lease of a learner: asynchronous rounds consume some of these
    late        a lease with steps that go into a later round than its own
    returned    a lease that was given up: its samples go back to the pool
    commit      a round is done: digest of the state, samples by worker
    score       the held-out loss of a committed round, over all its batches
    checkpoint  the state of a committed round is on disk
    rewind      the state of later rounds is lost: back to a committed round
    recut       the state is in the parts of another mesh: its digest in these
    quarantined a worker with repeated faults takes no part any more
    order       an order of an operator (`pcp.training.coordinator.operator_control`)
    end         the run is complete

Replaying the lines gives the state of the run, from which a shepherd starts after a
crash. `check` proves, from the lines alone, that no sample of an epoch was consumed
twice and none was lost; `pcp.training.simulate.replay` makes the rounds again and
compares their digests. One process at a time has a ledger open.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from pcp import outside, signing, strict_json
from pcp.errors import ConfigError, RuntimeFault, StateMismatch
from pcp.runtime.group.file_lock import hold
from pcp.runtime.transport.link import Untrusted
from pcp.runtime.transport.signatures import Signer, of_mark, signer_of
from pcp.training.data.lease_pool import Range, complement, merged, size
from pcp.training.storage.append_log import DiskFull, append
from pcp.training.storage.ledger_history import History
from pcp.training.storage.ledger_state import LedgerReplay, Progress, replayed
from pcp.whole_file import sync_folder

FILE_NAME = "ledger.jsonl"
KEPT_ROUNDS = 512
"""A shepherd has this many rounds in memory, at most twice as many."""


def _line(record: Mapping[str, Any]) -> bytes:
    body = strict_json.dumps(record, separators=(",", ":"), sort_keys=True)
    check = f"{zlib.crc32(body.encode()):08x}"
    return f'{body[:-1]},"crc":"{check}"}}\n'.encode()


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a line, or None where the line is damaged."""
    try:
        record = strict_json.parse(line)
        check = record.pop("crc")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return record if _line({**record}) == line and check else None


def read(path: str | Path) -> tuple[list[dict[str, Any]], int]:
    """The records, and their bytes in the file.

    The file may be longer: then its last line was torn.
    """
    records, good, *_ = _read(path)
    return records, good


def read_lines(path: str | Path) -> list[bytes]:
    """The whole lines of a file, after all were checked."""
    good = _read(path)[1]
    return outside.read_bytes(path)[:good].splitlines(keepends=True)


def last_hash(path: str | Path) -> str:
    """The SHA-256 of the last whole line, which covers the whole ledger."""
    return _read(path)[2]


def signers(path: str | Path) -> list[str]:
    """The ids that signed lines, in the order of their first ones.

    `StateMismatch` for a signature of another line.
    """
    return list(dict.fromkeys(filter(None, map(_signer, _read(path)[3]))))


def _signer(line: "SignedLine") -> str:
    """The id that signed a line; "": the line has no signature."""
    if not line.mark:
        return ""
    try:
        return signer_of(signing.LEDGER, line.digest, of_mark(line.mark))
    except (Untrusted, ValueError) as error:
        raise StateMismatch(
            f"line {line.number} of the ledger: its signature is not of it: the ledger "
            "was changed; restore the file or start a new run"
        ) from error


class SignedLine(NamedTuple):
    """The signed bytes of a line, and its signature."""

    number: int
    digest: str
    mark: str


def _read(
    path: str | Path,
) -> tuple[list[dict[str, Any]], int, str, list[SignedLine]]:
    """As `read`, the hash of the last line, and the signatures of all."""
    try:
        content = outside.read_bytes(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the ledger: {error.strerror}"
        ) from error
    records: list[dict[str, Any]] = []
    marks: list[SignedLine] = []
    good, before = 0, FIRST
    chained = False
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        record = _record(line)
        if record is None or record.get("n") != number:
            if number == len(lines) - 1 and not line.endswith(b"\n"):
                break
            raise StateMismatch(
                f"{path}:{number + 1}: damaged line in the ledger; restore the file "
                "or start a new run"
            )
        mark = str(record.pop("sig", ""))
        if marks and marks[-1].mark and not mark:
            raise StateMismatch(
                f"{path}:{number + 1}: this line is not signed, and those before are: "
                "the ledger was changed; restore the file or start a new run"
            )
        digest = _signed_part(record) if mark else ""
        marks.append(SignedLine(number + 1, digest, mark))
        found = record.pop("prev", None)
        chained = chained or found is not None
        if chained and found != before:
            raise StateMismatch(
                f"{path}:{number + 1}: this line does not follow the one before: "
                "the ledger was changed; restore the file or start a new run"
            )
        records.append(record)
        good, before = good + len(line), hash_of(line)
    return records, good, before, marks


FIRST = "0" * 64
"""The hash before the first line."""


def _signed_part(record: Mapping[str, Any]) -> str:
    """The SHA-256 of a line without its signature and its sum."""
    body = strict_json.dumps(record, separators=(",", ":"), sort_keys=True)
    return hash_of(body.encode())


def hash_of(line: bytes) -> str:
    """The SHA-256 of a line, by which the next one names it."""
    return hashlib.sha256(line).hexdigest()


class Ledger:
    """A run's ledger, open for appending."""

    def __init__(
        self,
        path: str | Path,
        signer: Signer | None = None,
        trusted: Collection[str] = (),
        wrote: Callable[[bytes, bool], None] = lambda line, sync: None,
    ) -> None:
        """Open `path`, replay it, and cut off a torn last line.

        With a `signer` new lines are signed; the present lines count if the last one is
        signed by it or by one of the ids `trusted`, or if no line is signed.
        `wrote(line, sync)` is called for each line on the disk, before it takes effect;
        if it raises `RuntimeFault`, the line does not count. `ConfigError` while
        another process has the file open, or where it cannot be opened.
        """
        self._wrote = wrote
        self.path, self._signer = Path(path), signer
        self._file = locked(self.path)
        try:
            records, self._bytes, self._last, marks = _read(self.path)
            self.signed = bool(marks and marks[0].mark) or not marks
            self._check_signer(marks[-1:], trusted)
            self._replay = replayed(records)
            self._replay.kept = KEPT_ROUNDS
            self.progress.history.shorten(KEPT_ROUNDS)
            self._count = len(records)
            self._file.truncate(self._bytes)
        except Exception:
            self._file.close()
            raise

    def _check_signer(
        self, last: Sequence[SignedLine], trusted: Collection[str]
    ) -> None:
        """ConfigError where a run with identities may not go on from these lines."""
        if self._signer is None:
            return
        for signer in filter(None, map(_signer, last)):
            if signer != self._signer.id and signer not in trusted:
                raise ConfigError(
                    f"{self.path}: signed by {signer}, and we are {self._signer.id}: "
                    f"say --trust {signer} if that was a shepherd of this run"
                )

    @property
    def progress(self) -> Progress:
        """The state after the last line."""
        return self._replay.progress

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._bytes

    @property
    def replay(self) -> LedgerReplay:
        """The replay that has applied the lines so far."""
        return self._replay

    def append(self, kind: str, *, sync: bool = True, **fields: Any) -> None:
        """Apply a record, and `write` it.

        `StateMismatch` for a record that cannot follow the ones before.
        """
        if kind == "rewind" and not self.progress.history.reaches(fields["to"]):
            self.progress.history = self.whole_history()
        self._replay.apply({"kind": kind, **fields})
        try:
            self.write(kind, fields, sync=sync)
        except DiskFull:  # the caller does not write it again
            self._give_up()
            raise

    def write(self, kind: str, fields: Mapping[str, Any], *, sync: bool = True) -> None:
        """Write a record that was applied, and wait until it is on the disk.
        Without `sync` the line is on the disk with the next one that waits: no line is
        ever there without those before it. `DiskFull` where there is no room: the same
        record may be written once there is. `RuntimeFault` for other errors of the
        disk, or if the file was deleted: then no record may be written any more.
        """
        if self._file.closed:
            raise RuntimeFault(f"{self.path}: the ledger is closed")
        if sync and not os.fstat(self._file.fileno()).st_nlink:
            self._file.close()
            raise RuntimeFault(
                f"{self.path}: the ledger was deleted while the run went on: nothing "
                "that is committed from now on could be kept"
            )
        record = {"n": self._count, "prev": self._last, "kind": kind, **fields}
        if self._signer is not None:
            digest = _signed_part(record)
            record["sig"] = self._signer.mark(signing.LEDGER, digest)
        line = _line(record)
        try:
            append(self._file, line, path=self.path, what="ledger", sync=sync)
        except DiskFull:
            self._cut_back()
            raise
        except RuntimeFault:
            self._give_up()
            raise
        self._bytes += len(line)
        self._last = hash_of(line)
        self._count += 1
        self._wrote(line, sync)

    def digests(self, round_: int) -> tuple[str, ...]:
        """The digests of the state after a committed round, in each mesh's parts.

        There are none for another round. The last digest is the one that counts.
        """
        if 0 < round_ <= self.progress.history.since:
            return self.whole_history().digests(round_)
        return self.progress.history.digests(round_)

    def whole_history(self) -> History:
        """The history with every round, read from the file."""
        return replayed(read(self.path)[0]).progress.history

    def close(self) -> None:
        """Close the file; another process may open it."""
        self._file.close()

    def _cut_back(self) -> None:
        """Cut off half a line, before the next line is written."""
        try:
            self._file.truncate(self._bytes)
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """The file lacks a line of `progress`: allow no further line."""
        with suppress(OSError):  # else the next reader drops the half line
            self._file.truncate(self._bytes)
        with suppress(OSError):
            self._file.close()


def locked(path: Path) -> FileIO:
    """A ledger's file, open for appending, and locked against other processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        file = FileIO(path, "ab")
        if new:  # fsync of the file alone does not keep its name, or its folder's
            sync_folder(path.parent)
            sync_folder(path.parent.parent)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot open the ledger: {error.strerror}; the run's folder must "
            "be writable"
        ) from error
    hold(
        file,
        f"{path.parent}: another shepherd goes on with this run; wait until it has "
        "ended, or name another folder with --run",
    )
    return file


@dataclass(frozen=True)
class LedgerReport:
    """The result of `check`."""

    rounds: int
    samples_per_epoch: int
    consumed: int
    pending: int
    """Samples that were given out and not consumed: held, or back in the pool."""
    epochs: tuple[int, ...]
    """Samples consumed in each epoch."""

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        yield f"rounds committed   {self.rounds}"
        yield f"samples consumed   {self.consumed}, each exactly once"
        yield f"samples pending    {self.pending} (held or returned, not lost)"
        for number, count in enumerate(self.epochs):
            of = f"{count} of {self.samples_per_epoch} samples"
            yield f"epoch {number:<4}         {of}"


def check(path: str | Path) -> LedgerReport:
    """Check that each sample of each epoch was consumed at most once, none lost.

    `StateMismatch` says which rule a line breaks.
    """
    return prove(read(path)[0], path)


def prove(records: Iterable[Mapping[str, Any]], path: str | Path) -> LedgerReport:
    """`check` of the records of a ledger that was read from `path`."""
    replay, granted = LedgerReplay(), 0
    for record in records:
        replay.apply(record)
        leases = record.get("leases", {"": record.get("lease", ())})
        stops = [b for ranges in leases.values() for _, b in ranges]
        granted = max([granted, *stops])
    progress = replay.progress
    if not progress.begin:
        raise StateMismatch(f"{path}: no run has begun in this ledger")
    used = progress.history.used()
    if size(merged(used)) != size(used):
        raise StateMismatch(f"{path}: samples were consumed twice")
    per_epoch = int(progress.begin["samples_per_epoch"])
    return LedgerReport(
        rounds=progress.committed,
        samples_per_epoch=per_epoch,
        consumed=size(used),
        pending=size(complement(used, granted)),
        epochs=tuple(_by_epoch(used, per_epoch)),
    )


def _by_epoch(ranges: Sequence[Range], per_epoch: int) -> Iterator[int]:
    end = max((stop for _, stop in ranges), default=0)
    for first in range(0, end, per_epoch):
        last = first + per_epoch
        yield sum(max(0, min(b, last) - max(a, first)) for a, b in ranges)
