"""Tiles of contractions on processors, by form, extents and vector width.

IREE gives each contraction the same tiles on CPUs. These were the fastest, or near it,
of those that `benchmarks/kernels.py` measures. A register tile fills the vector
registers with accumulators and leaves room for operands. All tiles divide their extent:
remainders of loops would cost more than good tiles gain.
"""

from dataclasses import dataclass, replace

from pcp.passes.kernels.contractions import Contraction


@dataclass(frozen=True)
class KernelTiles:
    """Rows and columns of a workgroup's part and of a register tile; its unrolling."""

    part_rows: int
    part_columns: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class Schedule:
    """How a product is computed: by which tiles, of which form."""

    tiles: KernelTiles
    turned: bool = False
    """Whether the right operand is transposed in memory first."""
    panels: bool = False
    """Whether the right operand is put into panels of a register tile's columns first,
    and a transposed left one is turned."""


#: By bits of a vector register: register tiles of f32, best first.
REGISTER_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    512: ((8, 32), (4, 32), (8, 16)),
    256: ((4, 16),),
    128: ((4, 16),),
}

HEADS: dict[int, tuple[tuple[int, int], ...]] = {512: ((16, 32), (16, 16))}
"""The same of batched products with a transposed right operand, as q·kᵀ of attention:
its rows are transposed in registers once for so many rows of the left one."""

MOST_DEPTH = 512
"""Of such a product: of a longer sum IREE's own order of loops is faster."""

PANELS: dict[int, tuple[int, int]] = {256: (4, 16)}
"""By bits: the register tile of products whose right operand is put into panels. Of few
registers a tile has few rows, and each row of the right operand is read often: at the
speed of the arithmetic from the first cache alone, where a panel stays."""

PANEL_PART = 128, 64
"""Most rows and columns of a workgroup's part of those."""

LEAST_IN_PANELS = 256
"""Rows from which panels are worth making them: as `LEAST_TURNED`."""

PART = 64
"""Most rows and columns of a workgroup's part: its operands fit the first caches."""

TURNING_BITS = 512
"""Width from which a transposed right operand costs more than turning it: its rows are
transposed in registers again for each block of rows of the left one."""

LEAST_TURNED = 512
"""Rows from which turning is worth it: elements move once, and are read often."""


def schedule_for(shape: Contraction, vector_bits: int, far: int = 1) -> Schedule | None:
    """How a product is computed where nothing was measured; None leaves it to IREE.

    `far`: steps side by side where rows of the right operand lie 4 KiB apart.
    """
    if in_panels(shape, vector_bits):
        return _with_panels(shape, *PANELS[vector_bits])
    if turn := turns(shape, vector_bits):
        shape = replace(shape, form="NN")
    if not shape.size or (shape.form[1] == "T" and not _is_of_heads(shape)):
        return None
    known = HEADS if shape.form[1] == "T" else REGISTER_TILES
    for rows, columns in known.get(vector_bits, ()):
        if shape.rows % rows == 0 and shape.columns % columns == 0:
            parts = _part(shape.rows, rows), _part(shape.columns, columns)
            tiles = KernelTiles(*parts, rows, columns, _unrolling(shape, far))
            return Schedule(tiles, turn)
    return None


def _is_of_heads(shape: Contraction) -> bool:
    return shape.batch > 0 and shape.form == "NT" and shape.depth <= MOST_DEPTH


def turns(shape: Contraction, vector_bits: int) -> bool:
    """Whether the right operand is to be transposed in memory first."""
    wide = vector_bits >= TURNING_BITS and not shape.batch
    return wide and shape.form == "NT" and shape.rows >= LEAST_TURNED


def in_panels(shape: Contraction, vector_bits: int) -> bool:
    """Whether the right operand is to be put into panels first."""
    rows, columns = PANELS.get(vector_bits, (0, 0))
    many = shape.size > 0 and shape.rows >= LEAST_IN_PANELS
    return many and rows > 0 and shape.rows % rows == shape.columns % columns == 0


def _with_panels(shape: Contraction, rows: int, columns: int) -> Schedule:
    part_rows, part_columns = PANEL_PART
    tiles = KernelTiles(
        _part(shape.rows, rows, part_rows),
        _part(shape.columns, columns, part_columns),
        rows,
        columns,
        1 if shape.depth % 4 else 4,
    )
    return Schedule(tiles, panels=True)


def _part(extent: int, tile: int, most: int = PART) -> int:
    """The largest multiple of `tile` up to `most` that divides `extent`."""
    return max(n for n in range(tile, most + 1, tile) if extent % n == 0)


def _unrolling(shape: Contraction, far: int) -> int:
    """Steps of the reduction side by side: they share loads of the left operand.

    Rows of the right one that lie 4 KiB apart evict each other from the first cache,
    which some processors mind more than others.
    """
    aliased = shape.form == "NN" and shape.columns % 1024 == 0
    steps = far if aliased else 4
    return 1 if shape.depth % steps else steps
