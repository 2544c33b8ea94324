"""Errors in units in the last place (ulp), by the rules of docs/accuracy.md."""

import ml_dtypes
import numpy as np
from helpers.accuracy.exact import Doubles, exact

from pcp.passes.legalize.functions.accuracy import Claim

BLOCK = 1 << 16  # numbers that fit a cache
EXPONENT = 0x7FF << 52


def errors(
    op: str, operands: list[np.ndarray], got: np.ndarray, least: float = 0
) -> Doubles:
    """How far each result is off, in ulp of the exact one; infinite where it is wrong.

    Wrong is a NaN or an infinity that should not be there or is missing, and a zero of
    the wrong sign. A subnormal operand may be taken for a zero of its sign, a result
    below twice the least normal number for another such, and what is less than 8 ulp
    below the largest number may overflow. Below `least` an error is in ulp of that.
    """
    found = _against(exact(op, operands), got, least)
    flushed = [_flushed(x) for x in operands]
    tiny = np.any([_is_tiny(x) for x in operands], axis=0)
    if tiny.any():
        want = exact(op, [x[tiny] for x in flushed])
        found[tiny] = np.minimum(found[tiny], _against(want, got[tiny], least))
    return found


def _against(exactly: tuple[Doubles, Doubles], got: np.ndarray, unit: float) -> Doubles:
    want, rest = exactly
    info = ml_dtypes.finfo(got.dtype)
    found = _wide(got)
    least, most = float(info.smallest_normal), float(info.max)
    with np.errstate(invalid="ignore", over="ignore"):
        off = abs((found - want) - rest)
        off[(off <= 2 * least) & (abs(want) <= 2 * least)] = 0
        ulp = off / spacing(np.maximum(abs(want), unit), got.dtype)
    both_nan = np.isnan(found) & np.isnan(want)
    large = abs(want) >= most * (1 - 8 * float(info.eps))
    over = np.isinf(found) & large & (np.signbit(found) == np.signbit(want))
    zero = (found == 0) & (np.signbit(found) != np.signbit(want))
    zero &= (unit == 0) & (abs(want) <= 2 * least)
    ulp[both_nan | over] = 0
    ulp[np.isnan(ulp) | zero] = np.inf
    return ulp


def counted(row: Claim, operands: list[np.ndarray], got: np.ndarray) -> Doubles:
    """Errors where a row of the table speaks, in its units; -1 elsewhere."""
    inside = row.holds_at(operands[0])
    found = np.full(got.shape, -1.0)
    there = [x[inside] for x in operands]
    found[inside] = errors(row.op, there, got[inside], row.least)
    return found


def suspects(
    op: str, operands: list[np.ndarray], got: np.ndarray, above: float
) -> np.ndarray:
    """Where a quick look finds an error of more than `above` ulp, or no number.

    It takes one ulp of the exact value from the bits of its exponent.
    """
    found = []
    for start in range(0, got.size, BLOCK):
        part = slice(start, start + BLOCK)
        off = _quick(op, [x[part] for x in operands], got[part])
        found.append(start + np.flatnonzero(~(off <= above)))
    return np.concatenate(found)


def _quick(op: str, operands: list[np.ndarray], got: np.ndarray) -> Doubles:
    want, _ = exact(op, operands)
    with np.errstate(all="ignore"):
        off = abs(got.astype(np.float64) - want)
        power = (want.view(np.int64) & EXPONENT).view(np.float64)
        return off / (power * float(ml_dtypes.finfo(got.dtype).eps))


def spacing(want: Doubles, dtype: np.dtype) -> Doubles:
    """One ulp at each number, as f64 holds it."""
    info = ml_dtypes.finfo(dtype)
    size = np.clip(abs(want), float(info.smallest_normal), float(info.max))
    _, exponent = np.frexp(np.where(np.isnan(size), 1, size))
    return np.ldexp(float(info.eps), exponent - 1)


def _flushed(x: np.ndarray) -> np.ndarray:
    """Subnormal numbers as zeros of their sign."""
    return np.where(_is_tiny(x), np.copysign(x.dtype.type(0), x), x)


def _is_tiny(x: np.ndarray) -> np.ndarray:
    size = abs(_wide(x))
    return (size > 0) & (size < float(ml_dtypes.finfo(x.dtype).smallest_normal))


def _wide(x: np.ndarray) -> Doubles:
    """As f64; a signalling NaN is a NaN."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)
