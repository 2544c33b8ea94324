"""Chapter 3: build your own collective.

`pcp guide check 3` runs your functions, over real sockets.
"""

import socket
import struct


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes, however many pieces TCP makes of them.

    ConnectionError if the other side closes before they are all there.
    """
    # `sock.recv(n)` gives at most n bytes, and none when the other side has closed.
    # (answer
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return bytes(data)
    # answer)


def send_frame(sock: socket.socket, payload: bytes) -> None:
    """A header, the length as 4 bytes big-endian, and then the payload."""
    # (answer
    sock.sendall(struct.pack(">I", len(payload)) + payload)
    # answer)


def receive_frame(sock: socket.socket, limit: int) -> bytes:
    """The payload that `send_frame` sent.

    ValueError if its header says more than `limit` bytes: a broken or hostile peer must
    not make us allocate whatever it likes.
    """
    # (answer
    (length,) = struct.unpack(">I", receive_exactly(sock, 4))
    if length > limit:
        raise ValueError(f"a frame of {length} bytes; at most {limit} are taken")
    return receive_exactly(sock, length)
    # answer)
