"""The angle of a point, to about an ulp: atan2 in f32 and f64.

The quotient of the smaller by the larger size, turned by an eighth where it is above
tan(π/8), goes into a polynomial: Cephes `atanf.c` (S. Moshier) for f32, fdlibm
`s_atan.c` (Sun Microsystems, 1993) for f64. π has as many digits as two numbers hold.
"""

from math import pi

import numpy as np

from pcp.passes.legalize.functions.words import Number, choose, horner

POLYNOMIALS = {
    32: (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1),
    64: (
        -1.62858201153657823623e-02,
        3.65315727442169155270e-02,
        -4.97687799461593236017e-02,
        5.83357013379057348645e-02,
        -6.66107313738753120669e-02,
        7.69187620504482999495e-02,
        -9.09088713343650656196e-02,
        1.11111104054623557880e-01,
        -1.42857142725034663711e-01,
        1.99999999998764832476e-01,
        -3.33333333333329318027e-01,
    ),
}
EIGHTH = 0.41421356237309503  # tan(π/8)
PI_REST = 1.2246467991473532e-16  # π less than its double
LARGE = {32: 2.0**124, 64: 2.0**1020}


def angle(y: Number, x: Number) -> Number:
    """Of (x, y) from the first axis, in [-π, π]; −0 is below it."""
    up, right = abs(y), abs(x)
    turn = _first_quadrant(up, right)
    high, low = _pi(x, 1)
    top = 1 << (x.width - 1)
    is_left = x.bits().is_("GE", top)
    turn = choose(is_left, high - (turn - low), turn)
    return x.known(y.known(turn.signed_like(y)))


def _first_quadrant(up: Number, right: Number) -> Number:
    """Of sizes; equal ones, infinite ones too, are at π/4, and zeros at 0."""
    is_steep = up.is_("GT", right)
    small, large = choose(is_steep, right, up), choose(is_steep, up, right)
    far = large.is_("GE", LARGE[up.width])
    small, large = (choose(far, v * 0.0625, v) for v in (small, large))
    turned = small.is_("GT", large * EIGHTH)
    quotient = choose(turned, small - large, small) / choose(
        turned, small + large, large
    )
    same = small.is_("EQ", large)  # 0/0 or ∞/∞ among them
    quotient = choose(same, 0.0, quotient)
    z = quotient * quotient
    rest = quotient + quotient * z * horner(z, POLYNOMIALS[up.width])
    rest = choose(is_steep, -rest, rest)
    base = [
        choose(turned, eighth, choose(is_steep, quarter, up.like(0)))
        for eighth, quarter in zip(_pi(up, 4), _pi(up, 2), strict=True)
    ]
    both = choose(large.is_("EQ", 0), 0.0, _pi(up, 4)[0])
    return choose(same, both, base[0] + (rest + base[1]))


def _pi(x: Number, part: int) -> tuple[Number, Number]:
    """π / part as a sum of two numbers of x's type."""
    if x.width == 64:
        return x.like(pi / part), x.like(PI_REST / part)
    high = float(np.float32(pi / part))
    return x.like(high), x.like(pi / part - high)
