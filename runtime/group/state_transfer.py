"""State transfer outside a group: a newcomer, or a checkpoint, reads a snapshot.

The owner goes on computing: its provider returns a revision and arrays that do
not change meanwhile, and a thread streams them. The reader gets an index
first (names, types, shapes), allocates what the index says if that is within
its bound, and receives checksummed segments straight into the arrays.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import PcpError, ProtocolError, RuntimeFault, UsageError
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.runtime.memory.dtypes import sent_dtype
from pcp.runtime.transport import authentication
from pcp.runtime.transport.blocking_io import BlockingConnection, ReadLimits
from pcp.runtime.transport.frame import (
    MAX_PAYLOAD,
    Frame,
    Kind,
    json_payload,
    parse_json,
    text,
    text_payload,
)
from pcp.runtime.transport.link import Wire

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

Provider = Callable[[], tuple[int, Mapping[str, NDArray]]]
_SEGMENT = 1 << 20
_STALLED_SECONDS = 30.0
_PING_SECONDS = 1.0
_CLOSING_SECONDS = 5.0
_MAX_READERS = 16
_SETTLED_SECONDS = 2.0
"""The seconds within which a reader must begin."""
_IDLE_BYTES = 1 << 20
"""Bytes a second; a slower reader may have to give its place to another."""


class Snapshot:
    """The provider of an endpoint's snapshots, and a bound on its readers.

    When all places are taken, a reader that takes less than `_IDLE_BYTES` a second
    loses its place to the next one: an idle reader keeps no other out.
    """

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._lock = threading.Lock()
        self._readers: dict[BlockingConnection, list[float]] = {}
        """When each reader began, and the bytes that it has taken since."""

    @contextmanager
    def place(self, reader: BlockingConnection) -> Iterator[bool]:
        """A place for a reader while the block runs; False: there is none."""
        with self._lock:
            if has_place := self._has_room():
                self._readers[reader] = [time.monotonic(), 0.0]
        try:
            yield has_place
        finally:
            with self._lock:
                self._readers.pop(reader, None)

    def took(self, reader: BlockingConnection, count: int) -> None:
        """A reader has taken so many bytes more."""
        with self._lock:
            if reader in self._readers:
                self._readers[reader][1] += count

    def _has_room(self) -> bool:
        if len(self._readers) < _MAX_READERS:
            return True
        now = time.monotonic()
        rates = {
            reader: taken / max(now - began, 1e-6)
            for reader, (began, taken) in self._readers.items()
            if now - began > _SETTLED_SECONDS
        }
        slowest = min(rates, key=rates.__getitem__, default=None)
        if slowest is None or rates[slowest] >= _IDLE_BYTES:
            return False
        del self._readers[slowest]
        with suppress(OSError):
            slowest.shutdown(socket.SHUT_RDWR)
        return True


def serve(wire: Wire, snapshot: Snapshot, hello: Mapping[str, Any]) -> None:
    """Stream the snapshot over a connected wire, in a thread of its own.

    The reader's `hello` may ask for a part of it (`only` of `fetch_snapshot`).
    """
    asked = hello.get("only")
    only = tuple(map(str, asked)) if isinstance(asked, list) else ()
    threading.Thread(
        target=_serve, args=(wire, snapshot, only), name="pcp-snapshot", daemon=True
    ).start()


def fetch_snapshot(
    address: str,
    timeout: float | timedelta = 60.0,
    *,
    silence: float | timedelta | None = None,
    max_bytes: int = 1 << 36,
    only: Sequence[str] = (),
    key: bytes | str | None = None,
    tls: "Tls | None" = None,
) -> tuple[int, dict[str, NDArray]]:
    """The (revision, arrays) that the endpoint at `address` serves.

    With `only`, the arrays whose names begin with one of these.

    Raises PeerLost when it dies meanwhile, Timeout after `timeout`, or after `silence`
    seconds without a byte if that is given (an endpoint with a slow provider sends a
    heartbeat every second), ProtocolError when it serves none or more than `max_bytes`.
    """
    limit = _seconds(timeout)
    quiet = math.inf if silence is None else _seconds(silence)
    if quiet <= 0:
        raise UsageError(f"silence={silence}: give a time above 0, or None")
    patience = ReadLimits(time.monotonic() + limit, quiet)
    wire = authentication.dial(
        address, min(limit, quiet), authentication.checked(key), tls
    )
    with BlockingConnection(wire, address) as owner:
        hello = json_payload({"purpose": "snapshot", "only": list(only)})
        owner.send(Frame(Kind.HELLO, payload=hello))
        header, payload = owner.answer(patience, MAX_PAYLOAD)
        while header.kind is Kind.PING:
            header, payload = owner.answer(patience, MAX_PAYLOAD)
        if header.kind is not Kind.WELCOME:
            raise ProtocolError(f"{address} gives no snapshot: {text(payload)}")
        index = parse_json(payload)
        arrays = _allocate(index, max_bytes)
        for name, array in arrays.items():
            _receive(owner, patience, name, array)
        _finish(owner, patience)
    return int(index["revision"]), arrays


def _seconds(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def _serve(wire: Wire, snapshot: Snapshot, only: tuple[str, ...]) -> None:
    with BlockingConnection(wire, "a reader of the snapshot") as reader:
        try:
            with snapshot.place(reader) as has_place:
                if not has_place:
                    _refuse(reader, f"{_MAX_READERS} others are reading; try again")
                    return
                _stream(reader, snapshot, only)
        except RuntimeFault:
            pass  # the reader has left


def _stream(
    reader: BlockingConnection, snapshot: Snapshot, only: tuple[str, ...]
) -> None:
    try:
        revision, arrays = _provided(reader, snapshot.provider)
        wanted = (n for n in arrays if not only or n.startswith(only))
        arrays = {name: checked(arrays[name], f"snapshot {name}") for name in wanted}
    except Exception as error:  # any error of the provider goes to the reader
        _refuse(reader, f"the owner has no snapshot to give: {error}")
        return
    entries = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    index = json_payload({"revision": revision, "tensors": entries})
    if len(index) > MAX_PAYLOAD:
        said = f"{len(entries)} arrays have too long an index: ask for some with only="
        _refuse(reader, said)
        return
    _tell(reader, Frame(Kind.WELCOME, payload=index))
    for array in arrays.values():
        view = octets(array)
        for at in range(0, len(view), _SEGMENT):
            segment = view[at : at + _SEGMENT]
            _tell(reader, Frame(Kind.DATA, offset=at, payload=segment))
            snapshot.took(reader, len(segment))
    _tell(reader, Frame(Kind.DONE))
    reader.ended(ReadLimits(time.monotonic() + _CLOSING_SECONDS))


def _provided(
    reader: BlockingConnection, provider: Provider
) -> tuple[int, Mapping[str, NDArray]]:
    """The provider's snapshot; a reader that has to wait gets heartbeats."""
    found: Future[tuple[int, Mapping[str, NDArray]]] = Future()

    def provide() -> None:
        try:
            found.set_result(provider())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=provide, name="pcp-provider", daemon=True).start()
    while not wait([found], _PING_SECONDS).done:
        _tell(reader, Frame(Kind.PING))
    return found.result()


def _refuse(reader: BlockingConnection, reason: str) -> None:
    _tell(reader, Frame(Kind.REFUSE, payload=text_payload(reason)))


def _tell(reader: BlockingConnection, frame: Frame) -> None:
    reader.send(frame, _STALLED_SECONDS)


def _allocate(index: dict[str, Any], max_bytes: int) -> dict[str, NDArray]:
    """Empty arrays as the index describes them, within the bound."""
    try:
        described = [
            (str(e["name"]), sent_dtype(e["dtype"]), tuple(map(int, e["shape"])))
            for e in index["tensors"]
        ]
        int(index["revision"])
    except (KeyError, TypeError, ValueError, PcpError) as error:
        raise ProtocolError(f"a snapshot index that makes no sense: {error}") from error
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in described]
    if any(dim < 0 for _, _, shape in described for dim in shape):
        raise ProtocolError("a snapshot index with a negative dimension")
    if sum(sizes) > max_bytes:
        raise ProtocolError(f"a snapshot of {sum(sizes)} bytes; {max_bytes} allowed")
    return {name: np.empty(shape, dtype) for name, dtype, shape in described}


def _receive(
    owner: BlockingConnection, patience: ReadLimits, name: str, array: NDArray
) -> None:
    view, at = octets(array), 0
    while at < len(view):
        header = owner.header(patience)
        room = view[at : at + header.length]
        if header.kind is not Kind.DATA or header.offset != at or not len(room):
            raise ProtocolError(f"{owner.peer} sent {name} out of order")
        if len(room) != header.length:
            raise ProtocolError(f"{owner.peer} sent more of {name} than there is")
        owner.payload(patience, header, room)
        at += header.length


def _finish(owner: BlockingConnection, patience: ReadLimits) -> None:
    header = owner.header(patience)
    if header.kind is not Kind.DONE or header.length:
        raise ProtocolError(f"{owner.peer} did not end its snapshot")
