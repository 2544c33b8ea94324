"""What holds a reader's answers: a function for each chapter, in a process of its own.

    python -m pcp.tools.guide.checks 3 exercise_03_sockets.py

runs one file, prints its `result` as a line of JSON, and exits. A check calls the
reader's functions with values whose results are known in another way: a closed form,
differences, numpy. Arguments and results stand in the message of what fails.
"""

import importlib.util
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pcp import strict_json
from pcp.tools.guide.chapters import HOLE, module_of

Check = Callable[[Any], Iterator[str]]
"""Of a module: yields the name of each function that holds."""


def same(found: Any, expected: Any, what: str) -> None:
    """Fail unless two values are equal: arrays to 1e-6, the rest exactly."""
    array = isinstance(expected, np.ndarray | float)
    if array:
        equal = np.shape(found) == np.shape(expected)
        equal = equal and np.allclose(found, expected, rtol=1e-6)
    else:
        equal = found == expected
    if not equal:
        raise AssertionError(f"{what} is {found}, not {expected}")


def agree(own: Any) -> Iterator[str]:
    """Chapter 1."""
    parts = [np.array([big, 1], np.float32) for big in (1e8, 1, -1e8, 1)]
    before = [part.copy() for part in parts]
    total = own.in_order(parts)
    same(total.tolist(), [1.0, 4.0], "the sum of 1e8, 1, -1e8, 1 in the order of ranks")
    same(str(total.dtype), "float32", "the sum's type")
    unchanged = all(map(np.array_equal, parts, before))
    same(unchanged, True, "that the members' arrays are as they were")
    yield "in_order"
    nan, zero = np.full(1, np.nan, np.float32), np.zeros(1, np.float32)
    same(own.agree([nan, nan.copy()]), True, "agree() of the same NaN")
    same(own.agree([zero, -zero]), False, "agree() of 0.0 and -0.0")
    same(own.agree([zero, zero, zero + 1]), False, "agree() of 0.0, 0.0 and 1.0")
    yield "agree"


def ring(own: Any) -> Iterator[str]:
    """Chapter 2."""
    for size in (2, 3, 5):
        held = [[{rank} for _ in range(size)] for rank in range(size)]
        for step in range(size - 1):
            sent = [own.chunk_to_send(rank, step, size) for rank in range(size)]
            moving = [set(held[rank][sent[rank]]) for rank in range(size)]
            for rank in range(size):
                left = (rank - 1) % size
                held[rank][sent[left]] |= moving[left]
        if size > 2:
            same(own.chunk_to_send(0, 1, size), size - 1, f"rank 0, step 1 of {size}")
        whole = {(r, c) for r in range(size) for c in range(size)
                 if len(held[r][c]) == size}  # fmt: skip
        same(len(whole), size, f"the number of whole chunks of {size} members")
        found = {(rank, own.chunk_finished(rank, size)) for rank in range(size)}
        same(found, whole, f"(rank, finished chunk) of {size} members")
    yield "chunk_to_send"
    yield "chunk_finished"
    same(own.bytes_sent(1000, 2), 1000.0, "bytes_sent(1000, 2)")
    same(own.bytes_sent(4000, 4), 6000.0, "bytes_sent(4000, 4)")
    yield "bytes_sent"


def sockets(own: Any) -> Iterator[str]:
    """Chapter 3."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(2)
        payload = bytes(range(256)) * 4000  # more than one recv gives
        sender = threading.Thread(target=_sent, args=(there, payload + b"more"))
        sender.start()
        found = own.receive_exactly(here, len(payload))
        sender.join(5)
        same(found == payload, True, "that the bytes are those that were sent")
        same(own.receive_exactly(here, 4), b"more", "what comes after them")
        there.sendall(b"half")
        there.close()
        _raises(ConnectionError, lambda: own.receive_exactly(here, 8), "a closed peer")
    yield "receive_exactly"
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(2)
        own.send_frame(there, b"hello")
        own.send_frame(there, b"")
        same(here.recv(4, socket.MSG_PEEK), b"\0\0\0\5", "the header of b'hello'")
        yield "send_frame"
        same(own.receive_frame(here, 100), b"hello", "the first frame")
        same(own.receive_frame(here, 100), b"", "the empty frame")
        there.sendall(b"\xff\xff\xff\xff")
        _raises(ValueError, lambda: own.receive_frame(here, 100), "a length of 4 GiB")
    yield "receive_frame"


def survive(own: Any) -> Iterator[str]:
    """Chapter 4."""

    def dies(array: Any) -> None:
        array[1] += 7
        raise own.PeerLost("member 2")

    array = np.array([1, 2, 3], np.float32)
    _raises(own.PeerLost, lambda: own.all_or_nothing(dies, array), "a lost member")
    same(array.tolist(), [1.0, 2.0, 3.0], "the array behind a failure")

    def doubles(array: Any) -> None:
        array *= 2

    own.all_or_nothing(doubles, array)
    same(array.tolist(), [2.0, 4.0, 6.0], "the array behind a success")
    yield "all_or_nothing"
    members = {0, 1, 2}
    for votes, expected in (
        ({0: "done", 1: "done", 2: "done"}, "done"),
        ({0: "done", 1: "done"}, "open"),
        ({0: "done", 1: "abort"}, "failed"),
        ({}, "open"),
    ):
        same(own.outcome(votes, members), expected, f"the outcome of {votes} of 3")
    yield "outcome"
    same(own.next_epoch([0, 1, 2], {1}, [7]), [0, 2, 7], "without 1, with 7")
    same(
        own.next_epoch([3, 1], set(), [1, 4]), [3, 1, 4], "with 1, who is there, and 4"
    )
    yield "next_epoch"


def quantise(own: Any) -> Iterator[str]:
    """Chapter 5."""
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    scale, codes = own.encode(values)
    same(str(codes.dtype), "int8", "the codes' type")
    same(int(np.abs(codes).max()), 127, "the largest code")
    same(own.encode(np.zeros(3, np.float32))[1].tolist(), [0, 0, 0], "codes of zeros")
    yield "encode"
    worst = float(np.abs(own.decode(scale, codes) - values).max())
    same(
        worst <= scale * 0.5001, True, f"that the worst error, {worst}, is half a step"
    )
    yield "decode"
    sent, error = np.zeros(1000), np.zeros(1000, np.float32)
    for _ in range(50):
        code, error = own.with_feedback(values, error)
        sent = sent + own.decode(*code)
    close = np.allclose(sent + error, 50 * values.astype(float), atol=1e-3)
    same(close, True, "that 50 sums and the last error are what was given")
    yield "with_feedback"


def diloco(own: Any) -> Iterator[str]:
    """Chapter 6."""
    anchor = np.array([1.0, 2.0])
    workers = [np.array([0.0, 2.0]), np.array([1.0, 0.0])]
    delta = own.mean_delta(anchor, workers, [300, 100])
    same(delta, np.array([0.75, 0.5]), "the mean delta")
    yield "mean_delta"
    after, velocity = own.outer_step(anchor, delta, np.zeros(2), 1.0, 0.0)
    same(after, np.array([0.25, 1.5]), "the anchor, lr 1 and no momentum: the mean")
    after, velocity = own.outer_step(anchor, delta, velocity, 0.7, 0.9)
    same(velocity, np.array([1.425, 0.95]), "the second velocity")
    same(after, anchor - 0.7 * (delta + 0.9 * velocity), "the second anchor")
    yield "outer_step"
    same(own.bytes_of_a_run(4000, 100, 10, 2), 40000.0, "10 rounds of 4000 bytes")
    same(own.bytes_of_a_run(4000, 100, 1, 4), 600000.0, "100 rounds of four workers")
    yield "bytes_of_a_run"


def derivative(own: Any) -> Iterator[str]:
    """Chapter 7."""
    random = np.random.default_rng(0)
    x, a, b = (random.normal(size=shape) for shape in ((5,), (3, 4), (4, 2)))
    g = random.normal(size=5)
    slope = _slope(lambda at: g @ np.tanh(at), x)
    same(own.tanh_vjp(g, x, np.tanh(x)), slope, "the cotangent of tanh")
    yield "tanh_vjp"
    g = random.normal(size=(3, 2))
    of_a, of_b = own.matmul_vjp(g, a, b)
    same(of_a, _slope(lambda at: (g * (at @ b)).sum(), a), "the cotangent of a")
    same(of_b, _slope(lambda at: (g * (a @ at)).sum(), b), "the cotangent of b")
    yield "matmul_vjp"
    same(own.broadcast_vjp(np.ones((3, 2))), np.array([3.0, 3.0]), "of three rows of 1")
    yield "broadcast_vjp"


def partition(own: Any) -> Iterator[str]:
    """Chapter 8."""
    parts = [own.part(5, rank, 2) for rank in range(2)]
    same(parts, [slice(0, 3), slice(3, 5)], "5 over 2 members")
    rows = [len(range(7)[own.part(7, rank, 3)]) for rank in range(3)]
    same(rows, [3, 2, 2], "the lengths of 7 over 3 members")
    yield "part"
    random = np.random.default_rng(0)
    x, w = random.normal(size=(4, 5)), random.normal(size=(5, 7))
    blocks = [own.columns(x, w, rank, 3) for rank in range(3)]
    same(np.concatenate(blocks, axis=1), x @ w, "the columns beside each other")
    yield "columns"
    sums = [own.partial_sum(x, w, rank, 3) for rank in range(3)]
    same(sums[0].shape, (4, 7), "the shape of a partial sum")
    same(np.sum(sums, axis=0), x @ w, "the sum of the partial sums")
    same(np.allclose(sums[0], x @ w), False, "that one of them is the whole already")
    yield "partial_sum"


def module(own: Any) -> Iterator[str]:
    """Chapter 9."""
    for sizes, limit, expected in (
        ([4, 4, 4, 4], 8, [[0, 1], [2, 3]]),
        ([1, 9, 1], 8, [[0], [1], [2]]),
        ([3, 3, 3], 100, [[0, 1, 2]]),
        ([], 8, []),
    ):
        same(own.buckets(sizes, limit), expected, f"the buckets of {sizes} by {limit}")
    yield "buckets"
    same(own.seconds(1.0, 0.5, 0.0), 1.5, "nothing beside the computation")
    same(own.seconds(1.0, 0.5, 1.0), 1.0, "all of the exchange beside it")
    same(own.seconds(0.25, 1.0, 0.5), 1.0, "0.5 s beside 0.25 s of computation")
    yield "seconds"


def homes(own: Any) -> Iterator[str]:
    """Chapter 10."""
    pool = own.Leases(6)
    same(pool.take("a", 2), [0, 1], "a's lease")
    same(pool.take("b", 2), [2, 3], "b's lease")
    yield "take"
    pool.lose("b")
    pool.lose("nobody")
    same(pool.free, [2, 3, 4, 5], "what is free when b has died")
    yield "lose"
    pool.commit({"a"})
    pool.take("c", 9)
    pool.commit({"c"})
    same(sorted(pool.used), list(range(6)), "what was used at the end")
    same(pool.free, [], "what is free at the end")
    yield "commit"


def _raises(kind: type[Exception], call: Callable[[], Any], what: str) -> None:
    """The call raises that, and a hole is no such error."""
    try:
        found = call()
    except (kind, NotImplementedError) as error:
        if isinstance(error, NotImplementedError):
            raise
        return
    except Exception as error:
        found = error
    raise AssertionError(f"{what}: {kind.__name__} is expected, not {found!r}")


def _sent(sock: socket.socket, data: bytes) -> None:
    """Send it, to a reader who may have given up."""
    with suppress(OSError):
        sock.sendall(data)


def _slope(function: Callable[[Any], float], at: Any) -> Any:
    """The derivative of a scalar function, by central differences."""
    found = np.empty_like(at)
    for i in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[i] = 1e-5
        found[i] = (function(at + step) - function(at - step)) / 2e-5
    return found


CHECKS: dict[str, Check] = {
    one.__name__: one
    for one in (
        agree, ring, sockets, survive, quantise,
        diloco, derivative, partition, module, homes,
    )
}  # fmt: skip
"""By the name of a chapter's exercise."""


def load(path: Path) -> ModuleType:
    """A reader's file as a module."""
    spec = importlib.util.spec_from_file_location("exercise", path)
    assert spec is not None
    assert spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    return own


def result(number: int, path: Path) -> dict[str, Any]:
    """`held`: functions that are right; `wrong`: why the next one is not, or None."""
    held: list[str] = []
    try:
        held.extend(_each(held, CHECKS[module_of(number)](load(path))))
    except Exception as error:
        return {"held": held, "wrong": _said(error, path)}
    return {"held": held, "wrong": None}


def _each(held: list[str], names: Iterator[str]) -> list[str]:
    """Note each name as it comes: an error behind it leaves those before."""
    for name in names:
        held.append(name)
    return []


def _said(error: Exception, path: Path) -> str:
    """A line: what is wrong, and the line of the reader's file where it was raised."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    where = f"{path.name}:{lines[-1]}: " if lines else ""
    if isinstance(error, NotImplementedError) and str(error) in HOLE:
        return f"{where}this one is yours to write"
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{where}{kind}{error}"


if __name__ == "__main__":
    sys.stdout.write(
        strict_json.dumps(result(int(sys.argv[1]), Path(sys.argv[2]).resolve())) + "\n"
    )
