"""Lines of a log: the time and a text, as Python's own logging writes them."""

import logging

DATE = "%Y-%m-%d %H:%M:%S"
DATED = logging.Formatter("%(asctime)s %(message)s", DATE)
TIMED = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")


def log_line(
    text: str, formatter: logging.Formatter = TIMED, at: float | None = None
) -> str:
    """A line of a text; `at` is its Unix time, now without one."""
    record = logging.makeLogRecord({"msg": text})
    record.created = record.created if at is None else at
    return formatter.format(record)
