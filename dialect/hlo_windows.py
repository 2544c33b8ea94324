"""Sliding windows: convolution and reduce_window, built and read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value


def dilated(size: int, dilation: int) -> int:
    """The extent of `size` elements that lie `dilation` apart."""
    return 0 if size == 0 else 1 + dilation * (size - 1)


def positions(extent: int, window: int, stride: int) -> int:
    """How often a window of that extent fits when it moves by `stride`."""
    return 0 if extent == 0 or window > extent else (extent - window) // stride + 1


def _ints(op: ir.Operation, name: str, rank: int, default: int) -> tuple[int, ...]:
    found = hlo.attribute(op, name)
    if found is None:
        return (default,) * rank
    return tuple(ir.DenseI64ArrayAttr(found))


def _padding(op: ir.Operation, rank: int) -> tuple[tuple[int, int], ...]:
    found = hlo.attribute(op, "padding")
    if found is None:
        return ((0, 0),) * rank
    flat = list(ir.DenseIntElementsAttr(found))
    if len(flat) == 1:  # a splat of one element is stored as that element
        flat = flat * (2 * rank)
    return tuple((flat[2 * i], flat[2 * i + 1]) for i in range(rank))


@dataclass(frozen=True)
class Dims:
    """Where batch, feature and spatial dimensions lie: (batch, feature, spatial).

    For the kernel the first two are input feature and output feature.
    """

    input: tuple[int, int, tuple[int, ...]]
    kernel: tuple[int, int, tuple[int, ...]]
    output: tuple[int, int, tuple[int, ...]]

    @classmethod
    def of(cls, attribute: ir.Attribute) -> "Dims":
        """Read `#stablehlo.conv<...>`."""
        n = stablehlo.ConvDimensionNumbers(attribute)
        return cls(
            (
                n.input_batch_dimension,
                n.input_feature_dimension,
                tuple(n.input_spatial_dimensions),
            ),
            (
                n.kernel_input_feature_dimension,
                n.kernel_output_feature_dimension,
                tuple(n.kernel_spatial_dimensions),
            ),
            (
                n.output_batch_dimension,
                n.output_feature_dimension,
                tuple(n.output_spatial_dimensions),
            ),
        )

    def attribute(self) -> ir.Attribute:
        """As `#stablehlo.conv<...>`."""
        groups = [[a, b, list(c)] for a, b, c in (self.input, self.kernel, self.output)]
        return stablehlo.ConvDimensionNumbers.get(*(x for g in groups for x in g))


@dataclass(frozen=True)
class Convolution:
    """Everything a convolution says besides its operands."""

    dims: Dims
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    reversal: tuple[bool, ...]
    feature_groups: int = 1
    batch_groups: int = 1
    precision: ir.Attribute | None = None

    @classmethod
    def of(cls, op: ir.Operation) -> "Convolution":
        """Read a `stablehlo.convolution`, defaults filled in."""
        dims = Dims.of(op.attributes["dimension_numbers"])
        rank = len(dims.input[2])
        reversal = hlo.attribute(op, "window_reversal")
        return cls(
            dims,
            _ints(op, "window_strides", rank, 1),
            _padding(op, rank),
            _ints(op, "lhs_dilation", rank, 1),
            _ints(op, "rhs_dilation", rank, 1),
            tuple(ir.DenseBoolArrayAttr(reversal)) if reversal else (False,) * rank,
            ir.IntegerAttr(op.attributes["feature_group_count"]).value,
            ir.IntegerAttr(op.attributes["batch_group_count"]).value,
            hlo.attribute(op, "precision_config"),
        )

    def result_shape(self, lhs: Sequence[int], rhs: Sequence[int]) -> list[int]:
        """The shape that the op gives for these operands."""
        shape = [0] * len(lhs)
        shape[self.dims.output[0]] = lhs[self.dims.input[0]] // self.batch_groups
        shape[self.dims.output[1]] = rhs[self.dims.kernel[1]]
        for i, d in enumerate(self.dims.output[2]):
            low, high = self.padding[i]
            extent = low + high
            extent += dilated(lhs[self.dims.input[2][i]], self.lhs_dilation[i])
            window = dilated(rhs[self.dims.kernel[2][i]], self.rhs_dilation[i])
            shape[d] = positions(extent, window, self.strides[i])
        return shape


def convolution(
    lhs: Value, rhs: Value, how: Convolution, element: ir.Type | None = None
) -> Value:
    """`stablehlo.convolution`; the result has `element`, or lhs's element type."""
    shape = how.result_shape(hlo.shape_of(lhs), hlo.shape_of(rhs))
    return hlo.op(
        "convolution",
        [lhs, rhs],
        [hlo.tensor(shape, element or hlo.element_type(lhs))],
        window_strides=hlo.i64s(how.strides),
        padding=hlo.i64_matrix(how.padding) if how.padding else None,
        lhs_dilation=hlo.i64s(how.lhs_dilation),
        rhs_dilation=hlo.i64s(how.rhs_dilation),
        window_reversal=hlo.bools(how.reversal),
        dimension_numbers=how.dims.attribute(),
        feature_group_count=hlo.i64(how.feature_groups),
        batch_group_count=hlo.i64(how.batch_groups),
        precision_config=how.precision,
    ).result


@dataclass(frozen=True)
class Window:
    """The window of a reduce_window or select_and_scatter, one entry a dimension."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, op: ir.Operation) -> "Window":
        """Read the op's attributes, defaults filled in."""
        rank = len(hlo.shape_of(op.operands[0]))
        return cls(
            _ints(op, "window_dimensions", rank, 1),
            _ints(op, "window_strides", rank, 1),
            _ints(op, "base_dilations", rank, 1),
            _ints(op, "window_dilations", rank, 1),
            _padding(op, rank),
        )

    def result_shape(self, shape: Sequence[int]) -> list[int]:
        """How many windows there are along each dimension."""
        return [
            positions(dilated(n, base) + low + high, dilated(size, step), stride)
            for n, size, stride, base, step, (low, high) in zip(
                shape,
                self.sizes,
                self.strides,
                self.base_dilations,
                self.dilations,
                self.padding,
                strict=True,
            )
        ]

    def with_(self, **changes: object) -> "Window":
        """A copy with some fields changed."""
        return replace(self, **changes)


def reduce_window(
    xs: Sequence[Value],
    inits: Sequence[Value],
    window: Window,
    combine: Callable[..., Value | Sequence[Value]],
) -> list[Value]:
    """Fold each window of all operands together."""
    shape = window.result_shape(hlo.shape_of(xs[0]))
    operation = hlo.op(
        "reduce_window",
        [*xs, *inits],
        [hlo.tensor(shape, hlo.element_type(x)) for x in xs],
        regions=1,
        window_dimensions=hlo.i64s(window.sizes),
        window_strides=hlo.i64s(window.strides),
        base_dilations=hlo.i64s(window.base_dilations),
        window_dilations=hlo.i64s(window.dilations),
        padding=hlo.i64_matrix(window.padding) if window.padding else None,
    )
    scalars = [i.type for i in inits]
    hlo.body(operation, [*scalars, *scalars], combine)
    return list(operation.results)
