"""A run's dashboard: a live table in a terminal, plain lines anywhere else."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from pcp.errors import counted
from pcp.training.observe.log_lines import log_line
from pcp.training.observe.metrics import NullObserver
from pcp.training.storage.round_record import Round

_LINES = 8
_RECENT = 8
"""Rounds by which the next ones are expected."""
_BARS = "▁▂▃▄▅▆▇█"


def round_line(record: Round, rounds: int) -> str:
    """One round in one line."""
    return (
        f"round {record.round}/{rounds}  loss {record.loss:.4f}  "
        f"{record.tokens_per_second:,.0f} tokens/s  "
        f"{counted(record.workers, 'worker')}  "
        f"{record.bytes_sent_per_worker / 1e6:.2f} MB sent each  "
        f"{record.seconds:.2f} s"
    )


def sparkline(values: list[float], width: int = 48) -> str:
    """The values as a row of bars, at most `width`; "!" where one is not finite."""
    if not values:
        return ""
    stride = -(-len(values) // width)
    parts = [values[i : i + stride] for i in range(0, len(values), stride)]
    # None for a part with a value that is not finite, for which there is no bar.
    shown = [min(part) if all(map(math.isfinite, part)) else None for part in parts]
    known = [v for v in shown if v is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join("!" if v is None else _BARS[round((v - low) * scale)] for v in shown)


class PlainLog(NullObserver):
    """Writes a line for each event; `write` takes lines."""

    def __init__(self, rounds: int, write: Callable[[str], None]) -> None:
        self._rounds, self._write = rounds, write

    def log(self, text: str) -> None:
        """Write a line with the time."""
        self._write(log_line(text))

    def round(self, record: Round) -> None:
        """Write the round."""
        self.log(round_line(record, self._rounds))

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Write the held-out loss."""
        self.log(
            f"round {number}: validation loss {loss:.4f} ({counted(batches, 'batch')})"
        )


def time_left(seconds: Sequence[float], rounds: int) -> str:
    """How long so many rounds still take, after these; "" behind the last one.

    >>> time_left([2.0, 2.2, 9.0], 30)
    '  about 66 s left'
    >>> time_left([10.0], 90)
    '  about 15 min left'
    """
    if rounds <= 0 or not seconds:
        return ""
    left = median(seconds) * rounds
    said = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
    return f"  about {said} left"


class Dashboard(NullObserver):
    """A table that `rich` redraws; needs a terminal."""

    def __init__(self, rounds: int, console: Any) -> None:
        from rich.live import Live

        self._rounds = rounds
        self._values: Mapping[str, Any] = {}
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._last = "waiting for workers"
        self._validation = ""
        self._lines: list[str] = []
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def log(self, text: str) -> None:
        """Show a line among the newest ones."""
        self._lines = [*self._lines, log_line(text)][-_LINES:]
        self._draw()

    def round(self, record: Round) -> None:
        """Show the newest round and the curve."""
        self._losses.append(record.loss)
        self._seconds = [*self._seconds, record.seconds][-_RECENT:]
        left = time_left(self._seconds, self._rounds - record.round)
        self._last = round_line(record, self._rounds) + left
        self._draw()

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Show the newest held-out loss."""
        self._validation = f"validation loss {loss:.4f} after round {number}"
        self._draw()

    def status(self, values: Mapping[str, Any]) -> None:
        """Show the workers."""
        self._values = values
        self._draw()

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()

    def _draw(self) -> None:
        self._live.update(self.picture())

    def picture(self) -> Any:
        """The screen as it is now, for `rich` to render."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        values = self._values
        table = Table(expand=True)
        for title in ("worker", "address", "device", "state", "round", "last heard"):
            table.add_column(title)
        for w in values.get("workers", ()):
            ranks = len(w.get("ranks", ()))
            table.add_row(
                str(w["index"]),
                w["address"],
                f"{w['target']} {w['device']}" + (f" x {ranks}" if ranks else ""),
                w["state"],
                "-" if w["round"] is None else str(w["round"]),
                f"{w['silent_seconds']:.1f} s",
            )
        for w in values.get("absent", ()):
            device = f"{w['target']} {w['device']}"
            gone = Text(f"left: {w['left']}", style="red")
            table.add_row(str(w["index"]), w["address"], device, gone, "-", "-")
        done = values.get("round", 0)
        saving = "  saving a checkpoint" if values.get("saving") else ""
        parts = [
            # A bar ends without a newline; a padded cell ends its line.
            Padding(ProgressBar(total=self._rounds, completed=done), 0),
            Text(self._last + saving),
            Text(f"{sparkline(self._losses)}  {self._validation}", style="green"),
            table,
            Text("\n".join(self._lines), style="dim"),
        ]
        return Panel(Group(*parts), title=str(values.get("run", "pcp train")))
