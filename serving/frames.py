"""Control frames: what rank 0 tells the others of a tick, as 32-bit integers.

    length, operations; of each: kind, its numbers
    CLEAR  slot
    CALL   1 for prefill, slots, rows, context, wanted, which slots, tokens, starts,
           counts of a prefill; where tokens are drawn, what is asked of each row,
           how many tokens are listed, how many rows are changed, and of each: row,
           how many words of bits and of changes, they
    STOP

A tick fits into the first frame of `FIRST` numbers, or goes on in a second one that
has the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcp.decoder_phase import ASKED, SAMPLERS, Phase
from pcp.errors import ProtocolError
from pcp.serving.cached_model import Call
from pcp.serving.drawing import DRAWN, Change, Draw

FIRST = 512
STOP, CLEAR, CALL = range(3)


@dataclass(frozen=True)
class Order:
    """What the members of a mesh do next, all of them alike."""

    cleared: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    stop: bool = False


def encode(order: Order) -> np.ndarray:
    """The numbers of an order, at least `FIRST` of them."""
    operations = [[CLEAR, slot] for slot in order.cleared]
    operations += [_of_call(call) for call in order.calls]
    operations += [[STOP]] if order.stop else []
    numbers = [n for operation in operations for n in operation]
    found = np.zeros(max(FIRST, len(numbers) + 2), np.int32)
    found[:2] = len(numbers) + 2, len(operations)
    found[2 : len(numbers) + 2] = numbers
    return found


def _of_call(call: Call) -> list[int]:
    phase = call.phase
    head = [CALL, int(phase.kind == "prefill"), phase.slots, phase.rows, phase.context]
    numbers = (*call.slots, *call.tokens, *call.starts, *call.counts)
    return [*head, _wanted(call), *numbers, *(_of_draw(call.draw) if call.draw else ())]


def _of_draw(draw: Draw) -> list[int]:
    found = [*draw.asked, draw.listed, len(draw.changes)]
    for each in draw.changes:
        words = [np.frombuffer(b, np.int32).tolist() for b in (each.bits, each.numbers)]
        found += [each.row, *map(len, words), *words[0], *words[1]]
    return found


def _wanted(call: Call) -> int:
    """0 for nothing, 1 for logits, and what the program draws by its place behind."""
    return 2 + SAMPLERS.index(call.draw.kind) if call.draw else int(call.wanted)


def decode(numbers: np.ndarray) -> Order:
    """The order that `encode` wrote; `ProtocolError` for other numbers."""
    reader = _Reader(numbers[: int(numbers[0])].tolist())
    _, operations = reader.take(2)
    cleared, calls, stop = [], [], False
    for _ in range(operations):
        (kind,) = reader.take(1)
        if kind == CLEAR:
            cleared += reader.take(1)
        elif kind == CALL:
            calls.append(_call(reader))
        elif kind == STOP:
            stop = True
        else:
            raise ProtocolError(f"a control frame with an operation {kind}")
    if reader.left:
        raise ProtocolError(f"a control frame with {reader.left} numbers too many")
    return Order(tuple(cleared), tuple(calls), stop)


def _call(reader: "_Reader") -> Call:
    prefill, slots, rows, context, wanted = reader.take(5)
    phase = Phase("prefill" if prefill else "decode", slots, rows, context)
    sizes = (slots, slots * rows, slots, slots * prefill)
    which, tokens, starts, counts = (tuple(reader.take(n)) for n in sizes)
    draw = _draw(reader, wanted - 2, phase) if wanted > 1 else None
    return Call(phase, which, tokens, starts, counts, bool(wanted), draw)


def _draw(reader: "_Reader", kind: int, phase: Phase) -> Draw:
    if kind >= len(SAMPLERS):
        raise ProtocolError(f"a control frame with a way {kind} to draw tokens")
    count = phase.looked_at * len(ASKED) if SAMPLERS[kind] == DRAWN else 0
    asked = tuple(reader.take(count))
    listed, changed = reader.take(2)
    changes = tuple(_change(reader) for _ in range(changed))
    return Draw(SAMPLERS[kind], asked, changes, listed)


def _change(reader: "_Reader") -> Change:
    row, *counts = reader.take(3)
    bits, numbers = (np.array(reader.take(n), np.int32).tobytes() for n in counts)
    return Change(row, bits, numbers)


class _Reader:
    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self._at = numbers, 0

    @property
    def left(self) -> int:
        """How many were not taken."""
        return len(self._numbers) - self._at

    def take(self, count: int) -> Sequence[int]:
        """The next numbers."""
        if count < 0 or count > self.left:
            raise ProtocolError("a control frame that ends too early")
        self._at += count
        return self._numbers[self._at - count : self._at]
