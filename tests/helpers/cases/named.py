"""Small programs that partitioners are judged by, with what each must send.

Named after the cases of openxla/shardy (`shardy/dialect/sdy/transforms`) and
openxla/xla (`xla/service/spmd/spmd_partitioner_test.cc`) that ask the same question;
the programs are our own. Data are small integers: results must be equal bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

ONE, TWO = {"x": 2}, {"x": 2, "y": 2}
RANGES = {"f32": (-3, 4, np.float32), "i32": (-2, 110, np.int32)}


@dataclass(frozen=True)
class Case:
    """A function, how its border lies, and the collectives of the busiest member.

    A tensor of the border is `(shape, layout)`; a layout has a word for each
    dimension, the letters of its axes or `-`: `"xy -"`. `body` is StableHLO that
    calls arguments `%0`, `%1`, .. and the result `%r`. `sent`: collectives by kind,
    without `pcp.`.
    """

    name: str
    asks: str
    arguments: Sequence[tuple[str, str]]
    result: tuple[str, str]
    body: str
    sent: dict[str, int] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=lambda: ONE)

    def text(self) -> str:
        """The module, with a mesh `@m`."""
        named = ", ".join(f'#pcp.axis<"{a}", {n}>' for a, n in self.axes.items())
        mesh = f'"pcp.mesh"() {{axes = [{named}], devices = [], sym_name = "m"}}'
        arguments = ", ".join(
            f"%{i}: {tensor(shape)} {sharding(layout)}"
            for i, (shape, layout) in enumerate(self.arguments)
        )
        shape, layout = self.result
        result = tensor(shape)
        return (
            f"{mesh} : () -> ()\n"
            f"func.func @main({arguments}) -> ({result} {sharding(layout)}) {{\n"
            f"{self.body}\nreturn %r : {result}\n}}\n"
        )

    def inputs(self) -> list[np.ndarray]:
        """Small integers; indices are partly out of range."""
        data = np.random.default_rng(len(self.name))
        arrays = []
        for shape, _ in self.arguments:
            *sizes, element = shape.split("x")
            low, high, dtype = RANGES[element]
            numbers = data.integers(low, high, [int(n) for n in sizes])
            arrays.append(numbers.astype(dtype))
        return arrays


def tensor(shape: str) -> str:
    """`8x4xf32` as a type."""
    return f"tensor<{shape}>"


def sharding(layout: str) -> str:
    """`"xy -"` as an attribute of the border."""
    dims = ", ".join(
        "[" + ", ".join(f'"{a}"' for a in word.strip("-")) + "]"
        for word in layout.split()
    )
    return f"{{pcp.sharding = #pcp.sharding<@m, [{dims}], [], []>}}"


def _move(name: str, asks: str, old: str, new: str, sent: dict[str, int], **more):
    """A tensor that only changes its layout."""
    shape = more.pop("shape", "8x8xf32")
    return Case(
        name,
        asks,
        [(shape, old)],
        (shape, new),
        f"%r = stablehlo.negate %0 : {tensor(shape)}",
        sent,
        TWO,
    )


def _dot(name: str, asks: str, a: str, b: str, c: str, sent: dict[str, int], **more):
    """`8x16 @ 16x4`, or of other `sizes`."""
    m, k, n = more.pop("sizes", (8, 16, 4))
    types = f"({tensor(f'{m}x{k}xf32')}, {tensor(f'{k}x{n}xf32')})"
    return Case(
        name,
        asks,
        [(f"{m}x{k}xf32", a), (f"{k}x{n}xf32", b)],
        (f"{m}x{n}xf32", c),
        "%r = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : "
        f"{types} -> {tensor(f'{m}x{n}xf32')}",
        sent,
        **more,
    )


def _one(name, asks, given, result, body, sent, axes=None) -> Case:
    """One argument, one result; `(T) -> R` is added to the body."""
    types = f" : ({tensor(given[0])}) -> {tensor(result[0])}"
    return Case(name, asks, [given], result, body + types, sent, axes or ONE)


def _pad(name: str, asks: str, by: tuple[int, int], sent: dict[str, int]) -> Case:
    """8 rows of 4, cut by rows, padded by that much on both sides."""
    result = tensor(f"{8 + 2 * by[0]}x{4 + 2 * by[1]}xf32")
    body = (
        "%z = stablehlo.constant dense<7.0> : tensor<f32>\n%r = stablehlo.pad %0, %z, "
        f"low = {list(by)}, high = {list(by)}, interior = [0, 0] : "
        f"(tensor<8x4xf32>, tensor<f32>) -> {result}"
    )
    return Case(name, asks, [("8x4xf32", "x -")], (result[7:-1], "x -"), body, sent)


EMBEDDING = """%r = "stablehlo.gather"(%0, %1) <{dimension_numbers =
  #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
  start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false,
  slice_sizes = array<i64: 1, 8>}>
  : (tensor<99x8xf32>, tensor<6xi32>) -> tensor<6x8xf32>"""

SCATTER = """%r = "stablehlo.scatter"(%0, %1, %2) <{scatter_dimension_numbers =
  #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
  indices_are_sorted = false, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<10x8xf32>, tensor<60xi32>, tensor<60x8xf32>) -> tensor<10x8xf32>"""

#: Cuts of the border of the embedding: (table, indices, rows).
_TABLE = [("99x8xf32", "x -"), ("6xi32", "-")]
BATCHED = (
    "%r = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], "
    "contracting_dims = [2] x [1] : (tensor<4x8x6xf32>, tensor<4x6x2xf32>) "
    "-> tensor<4x8x2xf32>"
)
CASES: tuple[Case, ...] = (
    # changes of layout
    _move("TiledToReplicated", "gather along an axis", "x -", "- -", {"all_gather": 1}),
    _move("sdy_all_gather", "gather two dimensions", "x y", "- -", {"all_gather": 2}),
    _move("sdy_all_slice", "cutting a whole tensor is free", "- -", "x y", {}),
    _move("TiledToTiledEven", "another dimension", "x -", "- x", {"all_to_all": 1}),
    _move("sdy_all_to_all", "a minor axis moves", "xy -", "x y", {"all_to_all": 1}),
    _move(
        "TiledToTiledUneven",
        "parts of unequal size move",
        "x -",
        "- x",
        {"all_gather": 1},
        shape="7x5xf32",
    ),
    _move(
        "reshard_to_collectives: swap",
        "two axes change places",
        "x y",
        "y x",
        {"permute": 1},
    ),
    _move(
        "reshard_to_collectives: reorder",
        "major and minor change places",
        "xy -",
        "yx -",
        {"permute": 1},
    ),
    _move(
        "reshard_to_collectives: replace",
        "one axis for another",
        "x -",
        "y -",
        {"permute": 1},
    ),
    _move(
        "reshard_to_collectives: slice first",
        "cut before gathering",
        "x -",
        "- xy",
        {"all_to_all": 1},
    ),
    # products
    _dot(
        "dot_general: free lhs", "rows of the result are cut", "x -", "- -", "x -", {}
    ),
    _dot(
        "dot_general: free rhs",
        "columns of the result are cut",
        "- -",
        "- x",
        "- x",
        {},
    ),
    _dot(
        "EinsumContractingDimsPartitioned",
        "partial sums are joined",
        "- x",
        "x -",
        "- -",
        {"all_reduce": 1},
    ),
    _dot(
        "sdy_reduce_scatter",
        "partial sums that are cut again",
        "- x",
        "x -",
        "x -",
        {"reduce_scatter": 1},
    ),
    _dot(
        "EinsumLHSNonContractingDimsPartitioned",
        "one axis each, both cut",
        "x -",
        "- y",
        "x y",
        {},
        axes=TWO,
    ),
    _dot(
        "DotLhsTiledRhsTiledWithReshard",
        "both free dimensions on one axis",
        "x -",
        "- x",
        "x -",
        {"all_gather": 1},
    ),
    _dot(
        "EinsumRHSWindowedContracting",
        "a weight gathered along its rows",
        "x -",
        "x -",
        "x -",
        {"all_gather": 1},
        sizes=(64, 8, 4),
    ),
    _dot(
        "dot_general_indivisible",
        "7, 5 and 3 in parts that differ",
        "x y",
        "y -",
        "x -",
        {"all_reduce": 1},
        axes=TWO,
        sizes=(7, 5, 3),
    ),
    Case(
        "EinsumBatchPartitioned",
        "a batch dimension is cut",
        [("4x8x6xf32", "x - -"), ("4x6x2xf32", "x - -")],
        ("4x8x2xf32", "x - -"),
        BATCHED,
    ),
    # indices
    Case(
        "gather_shard_reduction_dim_is_collapsed",
        "an embedding cut by words",
        _TABLE,
        ("6x8xf32", "- -"),
        EMBEDDING,
        {"all_reduce": 1},
    ),
    Case(
        "gather: offset dimension",
        "an embedding cut by features",
        [("99x8xf32", "- x"), ("6xi32", "-")],
        ("6x8xf32", "- x"),
        EMBEDDING,
    ),
    Case(
        "gather: indices",
        "words of the batch are cut",
        [("99x8xf32", "- -"), ("6xi32", "x")],
        ("6x8xf32", "x -"),
        EMBEDDING,
    ),
    Case(
        "scatter_shard_indexed_inserted_dim",
        "its gradient, cut by words",
        [("10x8xf32", "x -"), ("60xi32", "-"), ("60x8xf32", "- -")],
        ("10x8xf32", "x -"),
        SCATTER,
    ),
    Case(
        "scatter: updates",
        "its gradient, the batch cut",
        [("10x8xf32", "- -"), ("60xi32", "x"), ("60x8xf32", "x -")],
        ("10x8xf32", "- -"),
        SCATTER,
        {"all_reduce": 1},
    ),
    # data movement
    _one(
        "NonShardableReshape",
        "3 parts of 8 in rows of 3",
        ("3x8xf32", "x -"),
        ("8x3xf32", "x -"),
        "%r = stablehlo.reshape %0",
        {"all_gather": 1},
        {"x": 3},
    ),
    _one(
        "ShardableReshape",
        "the major part is cut",
        ("8x6xf32", "x -"),
        ("2x4x6xf32", "x - -"),
        "%r = stablehlo.reshape %0",
        {},
    ),
    _one(
        "reshape_1d_to_2d_split",
        "two axes become two dimensions",
        ("16xf32", "xy"),
        ("2x8xf32", "x y"),
        "%r = stablehlo.reshape %0",
        {},
        TWO,
    ),
    _one(
        "reshape_1d_to_2d_split: odd",
        "3 parts of 12 split as 4 times 3",
        ("12xf32", "x"),
        ("4x3xf32", "x -"),
        "%r = stablehlo.reshape %0",
        {"all_gather": 1},
        {"x": 3},
    ),
    _one(
        "ReshapeMergeDimsWithHaloExchange",
        "2x3x7 merged, cut in parts that differ",
        ("2x3x7x5xf32", "x - - -"),
        ("42x5xf32", "x -"),
        "%r = stablehlo.reshape %0",
        {},
    ),
    _one(
        "MultiDimensionShardedTranspose",
        "axes follow their dimensions",
        ("4x6x8xf32", "x y -"),
        ("8x4x6xf32", "- x y"),
        "%r = stablehlo.transpose %0, dims = [2, 0, 1]",
        {},
        TWO,
    ),
    Case(
        "ConcatenateAlongNonPartitionedDimension",
        "each member joins its rows",
        [("8x3xf32", "x -"), ("8x5xf32", "x -")],
        ("8x8xf32", "x -"),
        "%r = stablehlo.concatenate %0, %1, dim = 1 : "
        "(tensor<8x3xf32>, tensor<8x5xf32>) -> tensor<8x8xf32>",
    ),
    Case(
        "ConcatenateAlongPartitionedDimension",
        "the joined dimension is cut",
        [("4x6xf32", "x -"), ("8x6xf32", "x -")],
        ("12x6xf32", "x -"),
        "%r = stablehlo.concatenate %0, %1, dim = 0 : "
        "(tensor<4x6xf32>, tensor<8x6xf32>) -> tensor<12x6xf32>",
        {"permute": 2},
    ),
    Case(
        "slice: another dimension",
        "each member slices its rows",
        [("8x6xf32", "x -")],
        ("8x2xf32", "x -"),
        "%r = stablehlo.slice %0 [0:8, 1:5:2] : (tensor<8x6xf32>) -> tensor<8x2xf32>",
    ),
    Case(
        "SliceAlongPartitionedDimension",
        "the sliced dimension is cut",
        [("8x6xf32", "x -")],
        ("4x6xf32", "x -"),
        "%r = stablehlo.slice %0 [2:6, 0:6] : (tensor<8x6xf32>) -> tensor<4x6xf32>",
    ),
    Case(
        "slice_with_communication",
        "rows that one member has, for all",
        [("8x6xf32", "x -")],
        ("2x6xf32", "- -"),
        "%r = stablehlo.slice %0 [1:3, 0:6] : (tensor<8x6xf32>) -> tensor<2x6xf32>",
        {"all_gather": 1},
        {"x": 4},
    ),
    _pad("pad: another dimension", "each member pads its rows", (0, 1), {}),
    _pad("pad: the cut dimension", "the padded dimension is cut", (1, 0), {}),
)
