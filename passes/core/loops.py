"""Counted loops, as passes that emit them write them."""

from collections.abc import Callable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def counted(
    trips: int | Value,
    carries: Sequence[Value],
    step: Callable[..., Sequence[Value]],
) -> list[Value]:
    """What `carries = step(i, *carries)` leaves after i = 0 ... trips − 1.

    `i` is an `i32` scalar, as are `trips` that the program computes. One
    `stablehlo.while`, however many trips.
    """
    i32 = ir.IntegerType.get_signless(32)
    operands = [hlo.scalar(0, i32), *carries]
    types = [x.type for x in operands]
    loop = hlo.op("while", operands, types, regions=2)

    def goes_on(i: Value, *_: Value) -> Value:
        bound = hlo.scalar(trips, i32) if isinstance(trips, int) else trips
        return hlo.compare("LT", i, bound)

    def body(i: Value, *rest: Value) -> list[Value]:
        return [hlo.add(i, hlo.scalar(1, i32)), *step(i, *rest)]

    hlo.body(loop, types, goes_on, region=0)
    hlo.body(loop, types, body, region=1)
    return list(loop.results)[1:]
