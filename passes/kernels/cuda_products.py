"""Products of matrices on NVIDIA's GPUs: the kernels of native/product.cu.

| entry | pattern | reference | tolerance |
|---|---|---|---|
| `product` | `dot_general` of f32 with f32 | the op | depth · 2⁻²² of the sum of \
magnitudes, for operands above 2⁻¹¹²; infinity with infinity is no number |
| the same | asked for as TF32 by its `algorithm` | the op | depth · 2⁻¹⁰ |
| the same | of bf16 or f16, with a result in f32 | the op | depth · 2⁻²³ |

IREE has f32 products without tensor cores and without shared memory.
`benchmarks/gpu_check.py` measures them in whole programs; docs/evidence.md has the
gain.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels.contractions import Contraction, contraction_of
from pcp.passes.kernels.own_ptx import PtxCall

PROCESSORS = 132
"""Of the GPU that block sizes are chosen for, an H100; others have 40 to 150."""

LEAST_EXTENT, LEAST_SIZE = 16, 1 << 18
"""Rows, columns and depth, and multiplications of a product that a kernel takes."""

LEAST_DEPTH = 128
"""Of a part of a sum."""

MOST_BLOCKS = 65535  # of a grid's second and third dimension
STAGES = 4


@dataclass(frozen=True)
class Kind:
    """Element types and how many of them a tile is deep."""

    name: str
    bytes: int
    depth: int


_KINDS = {
    "f32": Kind("f32", 4, 16),
    "tf32": Kind("tf32", 4, 16),
    "bf16": Kind("bf16", 2, 32),
    "f16": Kind("f16", 2, 32),
}


@dataclass(frozen=True)
class ProductCall:
    """A call of a kernel, and how many sums its result is parted in.

    With `parts` above 1 the result has them as its first dimension.
    """

    call: PtxCall
    parts: int
    shape: tuple[int, ...]


def product_call(op: ir.Operation) -> ProductCall | None:
    """The call that computes a `dot_general`, or None where no kernel fits."""
    shape, kind = contraction_of(op), _kind(op)
    if shape is None or kind is None or shape.form not in ("NN", "NT", "TN"):
        return None
    least = min(shape.rows, shape.columns, shape.depth)
    if least < LEAST_EXTENT or shape.size < LEAST_SIZE:
        return None
    count = max(1, shape.batch)
    tile = 128 if _blocks(shape, 128) >= PROCESSORS else 64
    depth = shape.depth if shape.batch else _part(shape, tile)
    parts = -(-shape.depth // depth)
    grid = (
        -(-shape.columns // tile),
        -(-shape.rows // tile),
        count * parts,
    )
    if max(grid[1:]) > MOST_BLOCKS:
        return None
    call = PtxCall(
        f"pcp_product_{kind.name}_{tile}_{shape.form}",
        2,
        _numbers(shape, depth),
        grid,
        256 if tile == 128 else 128,
        _shared(shape.form, tile, kind),
    )
    sums = (parts,) if parts > 1 else ()
    return ProductCall(call, parts, (*sums, *shape.result))


def _kind(op: ir.Operation) -> Kind | None:
    left, right = (str(hlo.element_type(v)) for v in op.operands)
    if left != right or str(hlo.element_type(op.result)) != "f32":
        return None
    if "algorithm" in op.attributes:
        asked = str(op.attributes["algorithm"])
        tf32 = asked.count("_precision_type = tf32") == 2
        once = "num_primitive_operations = 1," in asked
        return _KINDS["tf32"] if left == "f32" and tf32 and once else None
    return _KINDS.get(left)


def _blocks(shape: Contraction, tile: int) -> int:
    rows, columns = -(-shape.rows // tile), -(-shape.columns // tile)
    return max(1, shape.batch) * rows * columns


def _part(shape: Contraction, tile: int) -> int:
    """How deep the sums are that the depth is cut into: all processors have work.

    A processor has three blocks of small tiles at a time, one of large ones.
    """
    blocks = _blocks(shape, tile)
    parts = min(3 * PROCESSORS // blocks, shape.depth // LEAST_DEPTH)
    if tile != 64 or parts < 2:
        return shape.depth
    whole = 32  # the depth of a tile, and whole vectors
    return -(-shape.depth // (parts * whole)) * whole


def _numbers(shape: Contraction, depth: int) -> tuple[int, ...]:
    """Rows, columns, depth; elements between rows, and between batches or parts.

    The last is the depth of all parts, 0 for batches.
    """
    lefts = shape.rows if shape.form[0] == "T" else shape.depth
    rights = shape.depth if shape.form[1] == "T" else shape.columns
    if shape.batch:
        apart = (shape.rows * depth, depth * shape.columns, 0)
    else:
        apart = (
            depth * shape.rows if shape.form[0] == "T" else depth,
            depth if shape.form[1] == "T" else depth * shape.columns,
            shape.depth,
        )
    return (shape.rows, shape.columns, depth, lefts, rights, *apart)


def _shared(form: str, tile: int, kind: Kind) -> int:
    """Bytes of the tiles of all stages, as native/product.cu lays them out."""
    flat = tile * (kind.depth + 8)  # depth is contiguous
    tall = kind.depth * (tile + (4 if kind.bytes == 4 else 8))
    left = tall if form[0] == "T" else flat
    right = flat if form[1] == "T" else tall
    return STAGES * (left + right) * kind.bytes
