"""Random numbers as StableHLO: counted, keyed, and the same bits on every target.

Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011), in integers. A key is split by its purpose as `jax.random.fold_in` does,
and the bits of a key are those of `jax.random.bits` (`jax_threefry_partitionable`, the
default): element i in row-major order has the two words of counter i, xored.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value
Words = tuple[Value, Value]
"""Two i32 tensors of one shape."""


def key_words(key: Value) -> Words:
    """The two words of a tensor<2xui32>, as rank-0 i32."""
    word = hlo.tensor((), ir.IntegerType.get_signless(32))
    parts = [hlo.reshape(hlo.slice_(key, [i], [i + 1]), ()) for i in range(2)]
    low, high = (hlo.bitcast_convert(part, word) for part in parts)
    return low, high


def fold_in(key: Words, number: int) -> Words:
    """The key for one purpose: other bits for each number."""
    counter = hlo.zeros(key[0].type), hlo.constant_like(key[0], wrap(number))
    return threefry(key, counter)


def bits(key: Words, shape: tuple[int, ...]) -> Value:
    """32 random bits at each position of `shape`, as i32."""
    low = positions(shape)
    counter = hlo.zeros(low.type), low
    wide = tuple(hlo.splat(word, shape) for word in key)
    first, second = threefry((wide[0], wide[1]), counter)
    return hlo.xor(first, second)


def uniform(key: Words, shape: tuple[int, ...]) -> Value:
    """f32 in [0, 1): multiples of 2^-24, all equally likely."""
    drawn = bits(key, shape)
    top = hlo.shift_right_logical(drawn, hlo.constant_like(drawn, 8))
    number = hlo.convert(top, ir.F32Type.get())
    return hlo.multiply(number, hlo.constant_like(number, 2.0**-24))


def positions(shape: tuple[int, ...]) -> Value:
    """Each element's place in row-major order, modulo 2^32, as i32."""
    type_ = hlo.tensor(shape, ir.IntegerType.get_signless(32))
    place = hlo.zeros(type_)
    stride = 1
    for dim in reversed(range(len(shape))):
        along = hlo.iota(type_, dim)
        place = hlo.add(place, hlo.multiply(along, hlo.constant_like(place, stride)))
        stride = wrap(stride * shape[dim])
    return place


ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
ROUNDS = 20


def threefry(
    key: tuple[Value, Value], counter: tuple[Value, Value]
) -> tuple[Value, Value]:
    """Threefry-2x32-20 on i32 tensors of one shape."""
    parity = hlo.constant_like(key[0], wrap(PARITY))
    schedule = (*key, hlo.xor(hlo.xor(key[0], key[1]), parity))
    a, b = hlo.add(counter[0], key[0]), hlo.add(counter[1], key[1])
    for i in range(ROUNDS):
        a = hlo.add(a, b)
        b = hlo.xor(_rotate(b, ROTATIONS[i % 8]), a)
        if i % 4 == 3:
            number = i // 4 + 1
            a = hlo.add(a, schedule[number % 3])
            b = hlo.add(b, schedule[(number + 1) % 3])
            b = hlo.add(b, hlo.constant_like(b, number))
    return a, b


def _rotate(x: Value, count: int) -> Value:
    left = hlo.shift_left(x, hlo.constant_like(x, count))
    right = hlo.shift_right_logical(x, hlo.constant_like(x, 32 - count))
    return hlo.or_(left, right)


def wrap(value: int) -> int:
    """`value` modulo 2^32, as a signed number."""
    return (value + 2**31) % 2**32 - 2**31
