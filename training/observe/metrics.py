"""The metrics of a run: a JSON line a round, and the interface of observers.

A line of `metrics.jsonl` is a `Round`; numbers that are not finite stand in it as
`pcp.strict_json` spells them. `read` drops a last line that a crash has torn; a round
that was made again, after a rewind or a crash of the shepherd, appears once, as it
ended.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from pcp import strict_json
from pcp.errors import RuntimeFault
from pcp.training.storage.append_log import append
from pcp.training.storage.round_record import MemberRound, Round


class Observer(Protocol):
    """An observer of a run. Calls come from the shepherd's thread."""

    def log(self, text: str) -> None:
        """A line of the log."""
        ...

    def keep(self, record: Round) -> None:
        """All members have prepared a round; it is committed next.

        If the shepherd dies in between, the next one keeps the round again when it
        commits it.
        """
        ...

    def round(self, record: Round) -> None:
        """A round was committed."""
        ...

    def validation(self, number: int, loss: float, batches: int) -> None:
        """The held-out loss after a round."""
        ...

    def checkpoint(self, number: int, path: str) -> None:
        """The state after a round is on the disk, in this folder."""
        ...

    def status(self, values: Mapping[str, Any]) -> None:
        """The state of the run, several times a second."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class NullObserver:
    """An observer that ignores all; base of observers of some events."""

    def log(self, text: str) -> None:
        """Ignored."""

    def keep(self, record: Round) -> None:
        """Ignored."""

    def round(self, record: Round) -> None:
        """Ignored."""

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Ignored."""

    def checkpoint(self, number: int, path: str) -> None:
        """Ignored."""

    def status(self, values: Mapping[str, Any]) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


class MetricsFile(NullObserver):
    """Appends rounds and validations to `metrics.jsonl`.

    A line for which the disk has no room is left out, and `said` is called once; the
    run goes on.
    """

    def __init__(
        self, path: str | Path, said: Callable[[str], None] = lambda text: None
    ) -> None:
        _cut_torn_line(Path(path))
        # Without a buffer: a line that did not fit on the disk is not written at close.
        self._path, self._file = Path(path), open(path, "ab", buffering=0)
        self._said, self._dropped = said, 0

    def keep(self, record: Round) -> None:
        """Append a round."""
        values = asdict(record)
        if not record.metrics:
            del values["metrics"]
        self._append({"kind": "round", **values})

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Append a validation."""
        values = {"round": number, "validation_loss": loss, "batches": batches}
        self._append({"kind": "validation", **values})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, values: Mapping[str, Any]) -> None:
        line = f"{strict_json.dumps(values)}\n".encode()
        end = self._file.tell()
        try:
            append(self._file, line, path=self._path, what="metrics")
        except RuntimeFault as error:
            with suppress(OSError):  # half a line would damage the next one
                self._file.truncate(end)
            if not self._dropped:
                self._said(f"metrics are left out: {error}")
            self._dropped += 1
            return
        if self._dropped:
            self._said(f"metrics are kept again; {self._dropped} lines are left out")
            self._dropped = 0


class ObserverFanout:
    """One observer for many."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def log(self, text: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.log(text)

    def keep(self, record: Round) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.keep(record)

    def round(self, record: Round) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.round(record)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.validation(number, loss, batches)

    def checkpoint(self, number: int, path: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.checkpoint(number, path)

    def status(self, values: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.status(values)

    def close(self) -> None:
        """Close all, even if one of them raises."""
        with ExitStack() as stack:
            for observer in self._observers:
                stack.callback(observer.close)


def read(path: str | Path) -> tuple[list[Round], dict[int, float]]:
    """The rounds in order, and the validation loss by round."""
    rounds: dict[int, Round] = {}
    validations: dict[int, float] = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            values = strict_json.parse(line)
        except ValueError:
            continue  # torn by a crash
        number = values["round"]
        if values.pop("kind") == "round":
            while rounds and next(reversed(rounds)) >= number:
                rounds.popitem()  # it was made again after a rewind
            rounds[number] = round_of(values)
        else:
            validations[number] = float(values["validation_loss"])
    return list(rounds.values()), validations


def round_of(values: Mapping[str, Any]) -> Round:
    """A round from its line, without the line's `kind`."""
    members = tuple(MemberRound(**_numbers(m)) for m in values.get("members", ()))
    metrics = _numbers(values.get("metrics", {}))
    return Round(**{**_numbers(values), "members": members, "metrics": metrics})


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """A line's numbers; those that are not finite are strings in the line."""
    return {k: float(v) if isinstance(v, str) else v for k, v in values.items()}


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        with open(path, "r+b") as file:
            file.truncate(whole)
