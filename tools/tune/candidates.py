"""Schedules worth measuring for a product, in three stages.

A register tile first, then the part of a workgroup, then the steps of a sum side by
side: each stage varies the fastest of the one before. All combinations are some
thousand for one product.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.tiles import (
    PANELS,
    PART,
    KernelTiles,
    Schedule,
    in_panels,
    turns,
)

#: By bits of a vector register: rows and columns of register tiles. The accumulators
#: of each fill at most the registers that there are.
REGISTER: dict[int, tuple[tuple[int, int], ...]] = {
    512: ((4, 64), (8, 16), (8, 32), (12, 32), (16, 16), (16, 32)),
    256: ((2, 32), (4, 16), (4, 24), (6, 16), (8, 8), (8, 16)),
    128: ((2, 16), (4, 8), (4, 16), (8, 8), (8, 4)),
}  # fmt: skip

#: Most rows and columns of a workgroup's part.
PARTS = ((32, 128), (64, 64), (64, 128), (64, 256), (128, 128), (256, 64))

DEPTHS = (1, 4, 8)

MOST_BYTES = 32 << 10
"""IREE refuses vectors from this size on, a register tile times its depth."""

Stage = Callable[[Contraction, int, Schedule | None], Iterator[Schedule]]


def register_tiles(
    shape: Contraction, bits: int, _: Schedule | None
) -> Iterator[Schedule]:
    """Each register tile that divides the product, of each form it can have."""
    can_turn = shape.form[1] == "T" and not shape.batch
    depth = 4 if shape.depth % 4 == 0 else 1
    if in_panels(shape, bits):  # half as fast again without; the next stage varies them
        rows, columns = PANELS[bits]
        part = _part(shape.rows, rows, PART), _part(shape.columns, columns, 64)
        yield Schedule(KernelTiles(*part, rows, columns, depth), panels=True)
        return
    # Of many rows, the right operand turned is twice as fast where registers are wide.
    for turned in (True,) if turns(shape, bits) else (False, True)[: 1 + can_turn]:
        for rows, columns in REGISTER.get(bits, ()):
            if shape.rows % rows == shape.columns % columns == 0:
                part = _part(shape.rows, rows, PART), _part(shape.columns, columns, 64)
                yield Schedule(KernelTiles(*part, rows, columns, depth), turned)


def parts(shape: Contraction, _: int, best: Schedule | None) -> Iterator[Schedule]:
    """The parts of a workgroup, with the best register tile."""
    if best is None:
        return
    tiles = best.tiles
    for rows, columns in PARTS:
        if rows >= tiles.rows and columns >= tiles.columns:
            part = replace(
                tiles,
                part_rows=_part(shape.rows, tiles.rows, rows),
                part_columns=_part(shape.columns, tiles.columns, columns),
            )
            yield replace(best, tiles=part)


def depths(shape: Contraction, _: int, best: Schedule | None) -> Iterator[Schedule]:
    """The steps of a sum side by side, with the best tiles."""
    if best is None:
        return
    tiles = best.tiles
    for depth in DEPTHS:
        size = 4 * tiles.rows * tiles.columns * depth
        if shape.depth % depth == 0 and size < MOST_BYTES:
            yield replace(best, tiles=replace(tiles, depth=depth))


STAGES: tuple[Stage, ...] = (register_tiles, parts, depths)


def _part(extent: int, tile: int, most: int) -> int:
    """The largest multiple of `tile` up to `most` that divides `extent`."""
    return max(n for n in range(tile, most + 1, tile) if extent % n == 0)
