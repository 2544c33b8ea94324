"""Matrices as integers with a scale for each group of 32 numbers of a row.

A group's largest number is 127 (`int8`) or its largest magnitude -8 (`int4`, as
llama.cpp's q4_0 has it). They lie as `frontends/decoders/stored.py` says: panels of 16
rows, [panel, group, 8 quads, 16, 4]; of int4 the quads j and j + 4 share a byte, each
number 8 higher than it is.
"""

import re

import numpy as np

GROUP, ROWS, QUADS, QUAD = 32, 16, 8, 4
_NAME = re.compile(r"(.+)\.(int8|int4)(\.scales)?")
_AT_ONCE = 1 << 22
"""Elements of a matrix that are f32 at one time."""


def parsed(name: str) -> tuple[str, str, bool] | None:
    """Of a parameter: the tensor, the kind, whether it is the scales; None of others.

    >>> parsed("a.weight.int8.scales"), parsed("a.weight")
    (('a.weight', 'int8', True), None)
    """
    found = _NAME.fullmatch(name)
    return (found[1], found[2], found[3] is not None) if found else None


def shape(matrix: np.ndarray, kind: str) -> tuple[int, ...]:
    """That of a matrix's panels."""
    rows, depth = matrix.shape
    quads = QUADS if kind == "int8" else QUADS // 2
    return -(-rows // ROWS), -(-depth // GROUP), quads, ROWS, QUAD


def quantized(matrix: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Panels of i8 and scales of f32 of a matrix [rows, depth] of floats.

    What is not finite makes its group's scale NaN.
    """
    packed = np.empty(shape(matrix, kind), np.int8)
    panels, groups = packed.shape[:2]
    scales = np.empty((panels, groups, ROWS), np.float32)
    step = max(1, _AT_ONCE // (ROWS * GROUP * max(1, groups)))
    for first in range(0, panels, step):
        part = slice(first, first + step)
        numbers, scales[part] = _panels(matrix[first * ROWS :][: step * ROWS], kind)
        if kind == "int4":
            high = (numbers + 8).astype(np.uint8)
            both = high[:, :, : QUADS // 2] | high[:, :, QUADS // 2 :] << 4
            numbers = both.view(np.int8)
        packed[part] = numbers
    return packed, scales


def _panels(matrix: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [panel, group, 8, 16, 4] and scales [panel, group, 16]."""
    rows, depth = matrix.shape
    panels, groups = -(-rows // ROWS), -(-depth // GROUP)
    whole = np.zeros((panels * ROWS, groups * GROUP), np.float32)
    whole[:rows, :depth] = matrix
    whole = whole.reshape(panels, ROWS, groups, QUADS, QUAD).transpose(0, 2, 3, 1, 4)
    high, low = whole.max((2, 4)), whole.min((2, 4))
    if kind == "int8":
        scales, most = np.maximum(high, -low) / 127, 127
    else:
        scales, most = np.where(high > -low, high, low) / -8, 7
    with np.errstate(divide="ignore", invalid="ignore"):
        by = np.where(scales != 0, 1 / scales, 0)[:, :, None, :, None]
        scales = np.where(np.isfinite(high) & np.isfinite(low), scales, np.nan)
        numbers = np.nan_to_num(np.rint(whole * by)).clip(-most - 1, most)
    return numbers.astype(np.int8), scales.astype(np.float32)


def restored(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The matrix that panels and scales stand for, rows and depth filled up."""
    numbers = packed
    if packed.shape[2] < QUADS:
        bytes_ = packed.view(np.uint8)
        numbers = np.concatenate([bytes_ & 15, bytes_ >> 4], 2).astype(np.int8) - 8
    whole = numbers.astype(np.float32) * scales[:, :, None, :, None]
    panels, groups = scales.shape[:2]
    return whole.transpose(0, 3, 1, 2, 4).reshape(panels * ROWS, groups * GROUP)
