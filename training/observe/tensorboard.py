"""A run's curves for TensorBoard: event files, written here.

An event file is a row of records, of which each is a length, its CRC, a protocol buffer
`Event`, and that one's CRC. The package that others write them with imports torch: for
two seconds of a processor, at its first round, a shepherd would be silent.
"""

import re
import socket
import struct
import time
from contextlib import suppress
from functools import cached_property
from io import FileIO
from pathlib import Path

import numpy as np

from pcp.errors import RuntimeFault
from pcp.training.observe.figures import figures
from pcp.training.observe.metrics import NullObserver
from pcp.training.storage.append_log import append
from pcp.training.storage.round_record import Round

_VERSION = b"brain.Event:2"
_START = b"\x08\x01"
"""A `SessionLog` with the status START."""


class TensorBoard(NullObserver):
    """Appends rounds and validations to an event file; a step is a round.

    `behind` is the newest committed round: TensorBoard drops later points of an earlier
    shepherd of the run. A point for which the disk has no room is left out.
    """

    def __init__(self, folder: Path, behind: int) -> None:
        self._folder, self._behind = folder, behind

    @cached_property
    def _file(self) -> FileIO:
        """The file, opened at the first point: a run without points has none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}"
        file = FileIO(self._folder / name, "wb")
        file.write(_record(_event(now, 0, 3, _VERSION)))
        file.write(_record(_event(now, self._behind + 1, 7, _START)))
        return file

    def round(self, record: Round) -> None:
        """Append the round's figures."""
        self._append(record.time, record.round, figures(record))

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Append the held-out loss."""
        self._append(time.time(), number, {"validation_loss": loss})

    def close(self) -> None:
        """Close the file."""
        if "_file" in vars(self):
            self._file.close()

    def _append(self, when: float, step: int, found: dict[str, float]) -> None:
        values = b"".join(_field(1, _scalar(*pair)) for pair in found.items())
        with suppress(OSError, RuntimeFault):
            end = self._file.tell()
            try:
                record = _record(_event(when, step, 5, values))
                append(self._file, record, path=self._folder, what="events")
            except RuntimeFault:  # half a record would damage the next one
                self._file.truncate(end)


def _event(when: float, step: int, what: int, data: bytes) -> bytes:
    """An `Event`, of which the field `what` is this."""
    head = b"\x09" + struct.pack("<d", when) + b"\x10" + _varint(step)
    return head + _field(what, data)


def _scalar(tag: str, value: float) -> bytes:
    """A `Summary.Value`."""
    name = re.sub(r"[^-/\w.]", "_", tag).lstrip("/").encode()
    with np.errstate(over="ignore"):
        return _field(1, name) + b"\x15" + np.array(value, "<f4").tobytes()


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + _masked(size) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    """The CRC-32C, turned so that a CRC of it is another one."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
