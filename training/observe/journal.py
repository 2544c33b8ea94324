"""The journal of a run: the shepherd's log, and the run's workers."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.training.observe.dashboard import PlainLog
from pcp.training.observe.log_lines import DATE, DATED, log_line

KNOWN = (
    *("index", "worker", "address", "target", "backend", "device", "supervisor"),
    "left",
)
"""The keys that are kept of a worker; `left` is why it is absent."""


class Journal(PlainLog):
    """Appends log lines, as dated text and as JSON, and a line whenever a worker
    comes or leaves.

    A line for which the disk has no room is left out: the ledger and the metrics, which
    count, report a full disk.
    """

    def __init__(self, rounds: int, log: Path, json_log: Path, workers: Path) -> None:
        super().__init__(rounds, self._append)
        paths = log, json_log, workers
        self._log, self._objects, self._workers = (
            open(path, "a", encoding="utf-8", buffering=1) for path in paths
        )
        self._last: dict[int, dict[str, Any]] = {}
        """The last line of each worker, by index."""

    def log(self, text: str) -> None:
        """Append a line with the date."""
        now = time.time()
        self._append(log_line(text, DATED, now))
        with suppress(OSError):
            self._objects.write(strict_json.dumps({"time": now, "text": text}) + "\n")

    def status(self, values: Mapping[str, Any]) -> None:
        """Append the workers that came or left."""
        for worker in (*values.get("workers", ()), *values.get("absent", ())):
            known = {key: worker[key] for key in KNOWN if key in worker}
            if self._last.get(index := worker["index"]) != known:
                self._last[index] = known
                with suppress(OSError):
                    self._workers.write(strict_json.dumps(known) + "\n")

    def close(self) -> None:
        """Close the files."""
        for file in (self._log, self._objects, self._workers):
            with suppress(OSError):
                file.close()

    def _append(self, line: str) -> None:
        with suppress(OSError):
            self._log.write(line.replace("\n", "\n    ") + "\n")


Event = tuple[float, str]
"""Unix time, to the second, and text."""


def events(path: Path) -> Iterator[Event]:
    """The events of a log; continued lines are joined."""
    found: list[Event] = []
    for line in _lines(path):
        at = _time(line[:19])
        if at is not None:
            found.append((at, line[20:]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line.strip()}")
    yield from found


def workers(path: Path) -> list[dict[str, Any]]:
    """The last entry of every worker of a run, by index."""
    found: dict[int, dict[str, Any]] = {}
    for line in _lines(path):
        with suppress(ValueError):  # torn by a crash
            worker = strict_json.parse(line)
            found[worker["index"]] = worker
    return [found[index] for index in sorted(found)]


def _lines(path: Path) -> list[str]:
    """The lines of a file; None without the file, in a run of an older version."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _time(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, DATE))
    except ValueError:
        return None
