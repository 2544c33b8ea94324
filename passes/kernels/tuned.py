"""Measured schedules, as an option of `pcp-schedule-kernels` says them.

    NN:0x2048x256x1024=32x64:4x64x4;NT:0x512x16x32=iree

A product is its form, batch, rows, depth and columns; its schedule is a part, a
register tile with the steps of a sum side by side, and `turned` where the right operand
is transposed first, or `panels` where it is put into panels. `iree` leaves the product
to IREE.
"""

import re
from collections.abc import Mapping

from pcp.errors import PassError
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.tiles import KernelTiles, Schedule

_ROW = re.compile(
    r"([NT][NT]):(\d+)x(\d+)x(\d+)x(\d+)="
    r"(?:iree|(\d+)x(\d+):(\d+)x(\d+)x(\d+)(:turned|:panels)?)"
)


def parse(text: str) -> dict[Contraction, Schedule | None]:
    """By product; `PassError` for what is no row, or has tiles that do not divide."""
    found: dict[Contraction, Schedule | None] = {}
    for row in filter(None, text.split(";")):
        if (said := _ROW.fullmatch(row)) is None:
            raise PassError(f"tuned={row!r}: write NN:0x64x8x32=64x32:8x32x4, or =iree")
        form, *rest = said.groups()
        batch, rows, depth, columns = map(int, rest[:4])
        shape = Contraction(form, batch, rows, depth, columns)
        found[shape] = _schedule(row, shape, rest[4:]) if rest[4] else None
    return found


def text_of(choices: Mapping[Contraction, Schedule | None]) -> str:
    """The option that says them, as `parse` reads it."""
    return ";".join(_row(shape, schedule) for shape, schedule in choices.items())


def _row(shape: Contraction, schedule: Schedule | None) -> str:
    extents = (shape.batch, shape.rows, shape.depth, shape.columns)
    said = f"{shape.form}:{'x'.join(map(str, extents))}="
    if schedule is None:
        return f"{said}iree"
    tiles = schedule.tiles
    part = f"{tiles.part_rows}x{tiles.part_columns}"
    numbers = f"{tiles.rows}x{tiles.columns}x{tiles.depth}"
    laid = ":turned" * schedule.turned + ":panels" * schedule.panels
    return f"{said}{part}:{numbers}{laid}"


def _schedule(row: str, shape: Contraction, said: list[str]) -> Schedule:
    *numbers, laid = said
    turned = laid == ":turned"
    tiles = KernelTiles(*map(int, numbers))
    pairs = (
        (shape.rows, tiles.part_rows),
        (shape.columns, tiles.part_columns),
        (tiles.part_rows, tiles.rows),
        (tiles.part_columns, tiles.columns),
        (shape.depth, tiles.depth),
    )
    for extent, tile in pairs:
        if tile < 1 or extent % tile:
            raise PassError(f"tuned={row!r}: a tile of {tile} in {extent}")
    if turned and (shape.form[1] != "T" or shape.batch):
        raise PassError(f"tuned={row!r}: only a matrix in form T can be turned")
    return Schedule(tiles, turned, laid == ":panels")
