"""The cube root of f32, to an ulp."""

from pcp.passes.legalize.functions.words import Number, choose

#: A third of the bits of x and this are the bits of its root, to 6 % (W. Kahan, 1991).
THIRD_OF_BITS = 709958130
STEPS = 3


def cbrt(x: Number) -> Number:
    """From a third of the exponent by Newton's method; ±0 and ±∞ are their own."""
    size = abs(x)
    bits = size.bits()
    third = bits >> 2
    for shift in range(4, 18, 2):  # 1/4 + 1/16 + ...: SPIR-V divides no unsigned words
        third = third + (bits >> shift)
    root = (third + THIRD_OF_BITS).float_bits()
    for _ in range(STEPS):
        root = root - (root - size / (root * root)) * (1.0 / 3.0)
    own = (size + size).is_("EQ", size)
    return x.known(choose(own, x, root.signed_like(x)))
