"""The ledger copy of a shepherd that stands by: lines, hashes, terms, cutting the end.

The format is that of `pcp.training.storage.ledger`. Each line of another shepherd is
checked as it comes: its number, the hash of the line before, and its sum. Lines that
the leader does not have are cut off again.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from pcp import strict_json
from pcp.errors import ProtocolError, StateMismatch
from pcp.training.storage.ledger import FIRST, hash_of, locked, read_lines

_MOST_BYTES = 1 << 20
"""The most bytes of the lines of one message, unless a single line is longer."""


class LedgerCopy:
    """The lines of a ledger's file, which this shepherd or the leader wrote.

    Between `release` and `hold` a `Ledger` has the file, and calls `wrote` for each
    line.
    """

    def __init__(self, path: Path) -> None:
        """Lock the file, and cut off a torn last line; ConfigError as for `Ledger`."""
        self.path = path
        self._file = locked(path)
        self._hashes: list[str] = []
        self._ends: list[int] = []
        self._leads: list[tuple[int, int]] = []
        """(lines before, term) of each leader's first line."""
        for line in read_lines(path):
            self.wrote(line)
        self._file.truncate(self._size)

    @property
    def _size(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self._ends)

    def term(self, count: int) -> int:
        """The term of the last of the first `count` lines; 0 of none."""
        at = bisect_right(self._leads, (count - 1, 1 << 62))
        return self._leads[at - 1][1] if at else 0

    def hash(self, count: int) -> str:
        """The hash of the last of the first `count` lines."""
        return self._hashes[count - 1] if count else FIRST

    def lines(self, start: int, most: int) -> Sequence[str]:
        """Lines from a number on, at most so many, and of limited size."""
        if start >= self.count or not most:
            return ()
        first = self._ends[start - 1] if start else 0
        last = min(start + most, self.count)
        stop = bisect_right(self._ends, first + _MOST_BYTES, start, last)
        stop = max(stop, start + 1)
        with open(self.path, "rb") as file:
            file.seek(first)
            content = file.read(self._ends[stop - 1] - first)
        return content.decode().splitlines(keepends=True)

    def take(self, start: int, lines: Sequence[str]) -> None:
        """Write lines from `start` on to the disk, in place of others.

        `ProtocolError` for a line that cannot follow.
        """
        wrote = False
        for at, text in enumerate(lines, start):
            line = text.encode()
            if at < self.count and self._hashes[at] == hash_of(line):
                continue
            if at < self.count:
                self._cut(at)
            _check(line, at, self.hash(at))
            self._file.write(line)
            self.wrote(line)
            wrote = True
        if wrote:
            os.fsync(self._file.fileno())

    def cut(self, count: int) -> None:
        """Keep `count` lines; the others do not count.

        `StateMismatch` if more than one of them commits a round: no leader writes a
        second commit before the first counts, so these counted.
        """
        if count >= self.count:
            return
        gone = self.lines(count, self.count)
        commits = sum('"kind":"commit"' in line for line in gone)
        if commits > 1:
            raise StateMismatch(
                f"{self.path}: {commits} rounds were committed behind line {count}, "
                "and the other shepherds know nothing of them: this is another run's "
                "folder, or they lost what they had"
            )
        self._cut(count)

    def wrote(self, line: bytes) -> None:
        """Note a line that a `Ledger` has written at the end of the file."""
        if b'"kind":"leader"' in line:
            record = strict_json.parse(line)
            if record["kind"] == "leader":
                self._leads.append((self.count, record["term"]))
        self._ends.append(self._size + len(line))
        self._hashes.append(hash_of(line))

    @property
    def released(self) -> bool:
        """Whether a `Ledger` has the file."""
        return self._file.closed

    def release(self) -> None:
        """Give the file to a `Ledger` of this process."""
        self._file.close()

    def hold(self) -> None:
        """Take the file back, with the lines for which `wrote` was called."""
        if self._file.closed:
            self._file = locked(self.path)
            self._file.truncate(self._size)

    def targets(self, start: int) -> set[str]:
        """The targets of workers that joined, by the lines from a number on."""
        found: set[str] = set()
        while lines := self.lines(start, 1024):
            start += len(lines)
            joined = [line for line in lines if '"kind":"joined"' in line]
            found |= {strict_json.parse(line).get("target", "") for line in joined}
        return found

    def _cut(self, count: int) -> None:
        del self._ends[count:], self._hashes[count:]
        self._leads = [(at, term) for at, term in self._leads if at < count]
        self._file.truncate(self._size)


def _check(line: bytes, number: int, before: str) -> None:
    try:
        record = strict_json.parse(line)
        good = (record["n"], record["prev"]) == (number, before)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"line {number} of another shepherd is none") from error
    if not good or line.count(b"\n") != 1:
        raise ProtocolError(f"line {number} of another shepherd does not follow")
