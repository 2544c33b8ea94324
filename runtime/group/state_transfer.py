"""State handed over outside a group: a newcomer, or a checkpoint, reads it.

The owner goes on computing: its provider returns a revision and arrays that do
not change meanwhile, and a thread streams them. The reader gets an index
first (names, types, shapes), allocates what the index says if that is within
its bound, and receives checksummed segments straight into the arrays.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import PcpError, ProtocolError, RuntimeFault, UsageError
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.runtime.memory.dtypes import sent_dtype
from pcp.runtime.transport import authentication, link
from pcp.runtime.transport.blocking_io import (
    Patience,
    read_answer,
    read_header,
    read_payload,
    write_frame,
)
from pcp.runtime.transport.frame import (
    MAX_PAYLOAD,
    Frame,
    Kind,
    json_payload,
    parse_json,
    text,
    text_payload,
)

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

Provider = Callable[[], tuple[int, Mapping[str, NDArray]]]
_SEGMENT = 1 << 20
_STALLED_SECONDS = 30.0
_PING_SECONDS = 1.0
_MAX_READERS = 16


class Snapshot:
    """What an endpoint serves, and to how many at once."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.places = threading.BoundedSemaphore(_MAX_READERS)


def serve(sock: Any, snapshot: Snapshot, hello: Mapping[str, Any]) -> None:
    """Stream the snapshot over a connected socket, in a thread of its own.

    Of all of it the reader's `hello` may want a part, as `fetch_snapshot` says.
    """
    asked = hello.get("only")
    only = tuple(map(str, asked)) if isinstance(asked, list) else ()
    threading.Thread(
        target=_serve, args=(sock, snapshot, only), name="pcp-snapshot", daemon=True
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

    Raises PeerLost when it dies on the way, Timeout after `timeout`, or when nothing
    came for `silence` seconds if that is given (whose provider takes long says every
    second that it lives), ProtocolError when it serves none or more than `max_bytes`.
    """
    limit = _seconds(timeout)
    quiet = math.inf if silence is None else _seconds(silence)
    if quiet <= 0:
        raise UsageError(f"silence={silence}: give a time above 0, or None")
    patience = Patience(time.monotonic() + limit, quiet)
    with authentication.dial(
        address, min(limit, quiet), authentication.checked(key), tls
    ) as sock:
        hello = json_payload({"purpose": "snapshot", "only": list(only)})
        write_frame(sock, address, Frame(Kind.HELLO, payload=hello))
        header, payload = read_answer(sock, address, patience, MAX_PAYLOAD)
        while header.kind is Kind.PING:
            header, payload = read_answer(sock, address, patience, MAX_PAYLOAD)
        if header.kind is not Kind.WELCOME:
            raise ProtocolError(f"{address} gives no snapshot: {text(payload)}")
        index = parse_json(payload)
        arrays = _allocate(index, max_bytes)
        for name, array in arrays.items():
            _receive(sock, address, patience, name, array)
        _finish(sock, address, patience)
    return int(index["revision"]), arrays


def _seconds(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def _serve(sock: Any, snapshot: Snapshot, only: tuple[str, ...]) -> None:
    peer = "a reader of the snapshot"
    with sock:
        sock.settimeout(_STALLED_SECONDS)
        try:
            if not snapshot.places.acquire(blocking=False):
                _refuse(sock, peer, f"{_MAX_READERS} others are reading; try again")
                return
            try:
                _stream(sock, peer, snapshot, only)
            finally:
                snapshot.places.release()
        except RuntimeFault:
            pass  # the reader left: that is its affair


def _stream(sock: Any, peer: str, snapshot: Snapshot, only: tuple[str, ...]) -> None:
    try:
        revision, arrays = _provided(sock, peer, snapshot.provider)
        wanted = (n for n in arrays if not only or n.startswith(only))
        arrays = {name: checked(arrays[name], f"snapshot {name}") for name in wanted}
    except Exception as error:  # whatever the provider met, the reader is told
        _refuse(sock, peer, f"the owner has no snapshot to give: {error}")
        return
    entries = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    index = json_payload({"revision": revision, "tensors": entries})
    if len(index) > MAX_PAYLOAD:
        said = f"{len(entries)} arrays have too long an index: ask for some with only="
        _refuse(sock, peer, said)
        return
    write_frame(sock, peer, Frame(Kind.WELCOME, payload=index))
    for array in arrays.values():
        view = octets(array)
        for at in range(0, len(view), _SEGMENT):
            segment = view[at : at + _SEGMENT]
            write_frame(sock, peer, Frame(Kind.DATA, offset=at, payload=segment))
    write_frame(sock, peer, Frame(Kind.DONE))
    sock.settimeout(5.0)
    with link.os_errors(peer, "closing"):
        sock.recv(1)


def _provided(
    sock: Any, peer: str, provider: Provider
) -> tuple[int, Mapping[str, NDArray]]:
    """What the provider gives; a reader that has to wait hears that we live."""
    found: Future[tuple[int, Mapping[str, NDArray]]] = Future()

    def provide() -> None:
        try:
            found.set_result(provider())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=provide, name="pcp-provider", daemon=True).start()
    while not wait([found], _PING_SECONDS).done:
        write_frame(sock, peer, Frame(Kind.PING))
    return found.result()


def _refuse(sock: Any, peer: str, reason: str) -> None:
    write_frame(sock, peer, Frame(Kind.REFUSE, payload=text_payload(reason)))


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
    sock: Any, address: str, patience: Patience, name: str, array: NDArray
) -> None:
    view, at = octets(array), 0
    while at < len(view):
        header = read_header(sock, address, patience)
        room = view[at : at + header.length]
        if header.kind is not Kind.DATA or header.offset != at or not len(room):
            raise ProtocolError(f"{address} sent {name} out of order")
        if len(room) != header.length:
            raise ProtocolError(f"{address} sent more of {name} than there is")
        read_payload(sock, address, patience, header, room)
        at += header.length


def _finish(sock: Any, address: str, patience: Patience) -> None:
    header = read_header(sock, address, patience)
    if header.kind is not Kind.DONE or header.length:
        raise ProtocolError(f"{address} did not end its snapshot")
