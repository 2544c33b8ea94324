"""Control frames: what goes in comes out, and what was not written is refused."""

from dataclasses import replace

import numpy as np
import pytest

from pcp.decoder_phase import Phase
from pcp.errors import ProtocolError
from pcp.serving.cached_model import Call
from pcp.serving.drawing import DRAWN, GREEDY, Change, Draw
from pcp.serving.frames import FIRST, Order, decode, encode

DECODE = Call(Phase("decode", 2, 1, 64), (3, 1), (7, 9), (0, 63), wanted=False)
DRAFTED = Call(Phase("decode", 1, 3, 64), (3,), (7, 9, 1), (5,))
PREFILL = Call(Phase("prefill", 1, 4, 64), (2,), (1, 2, 3, 0), (60,), (3,))
MOST = replace(PREFILL, draw=Draw(GREEDY, listed=5))
SAMPLE = replace(DECODE, wanted=True, draw=Draw(DRAWN, tuple(range(-7, 7))))
CHANGES = (Change(1, bytes(range(8)), b""), Change(0, b"", bytes(range(16, 48))))
CHANGED = replace(SAMPLE, draw=Draw(DRAWN, tuple(range(14)), CHANGES))
SEVERAL = Call(Phase("prefill", 2, 2, 64), (2, 0), (1, 2, 3, 0), (9, 0), (2, 1))


@pytest.mark.parametrize(
    "order",
    [
        Order(),
        Order(stop=True),
        Order((4, 0), (PREFILL, DECODE, DRAFTED, SEVERAL)),
        Order((1,), (MOST, SAMPLE, DECODE, CHANGED, MOST)),
        Order(calls=(PREFILL, DECODE) * 40),
    ],
)
def test_orders_come_back(order: Order) -> None:
    numbers = encode(order)
    assert len(numbers) >= FIRST
    assert decode(numbers) == order


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (1, 9, "ends too early"),
        (1, 1, "numbers too many"),
        (2, 7, "an operation 7"),
        (0, 5, "ends too early"),
        (7, 9, "a way 7 to draw tokens"),
    ],
)
def test_a_damaged_frame_is_refused(at: int, value: int, message: str) -> None:
    numbers = np.array(encode(Order(calls=(PREFILL, DECODE))))
    numbers[at] = value
    with pytest.raises(ProtocolError, match=message):
        decode(numbers)
