"""pcp-import: foreign StableHLO made regular."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.base import CppPasses, Pass
from pcp.passes.core.dialects import check_readable
from pcp.passes.core.fold import evaluate
from pcp.passes.core.rewriting import (
    attributes,
    before,
    functions,
    has_dynamic_type,
    integer,
    ints,
    operations,
    refuse,
    replace,
    sweep,
)
from pcp.passes.core.stops import needless
from pcp.passes.ingest import approximate_top_k
from pcp.passes.sharding.sub_axes import merge_meshes

Values = Sequence[ir.Value]
STATIC = "export the model with static shapes"
TENSORS = "a program's values are tensors, which IREE gives memory to; write one"


@dataclass(frozen=True)
class Import(Pass):
    """Make StableHLO of other tools regular: spec ops, static shapes.

    Assumes a module of functions as torch-mlir, JAX or a person writes them.
    Leaves `func`, `stablehlo`, `chlo` and `pcp` ops with static shapes, and ops of
    `arith`, `linalg`, `math` and `tensor` on tensors as they stand:

    - an `arith.constant` tensor becomes `stablehlo.constant`;
    - `dynamic_*` ops whose shape operands are constant become static ones; if
      types are still dynamic, StableHLO's own shape refinement is asked once;
    - ops that the specification dropped (`dot`, `broadcast`, `einsum`,
      `unary_einsum`, `torch_index_select`, `create_token`) become spec ops;
    - JAX's custom call `ApproxTopK` becomes `chlo.top_k`, which is exact;
    - a `pcp.stop_gradient` that no derivative can reach (of integers, of a constant,
      of what is stopped already) gives way to its operand;
    - what is dead after that goes;
    - meshes over the same devices become parts of the axes of the first one.

    What is still dynamic or of another dialect is an error at its location.

        %n = arith.constant dense<4> : tensor<1xi64>
        %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi64>) -> tensor<4xi64>
    becomes
        %0 = stablehlo.iota dim = 0 : tensor<4xi64>
    """

    name = "pcp-import"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place, or raise `PassError` at what cannot be made regular."""
        approximate_top_k.make_exact(module)
        _rewrite(module)
        if any(has_dynamic_type(op) for op in operations(module)):
            CppPasses(
                "stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism)"
            ).run(module)
            _rewrite(module)
        for function in functions(module):
            sweep(function)
        _check(module)
        merge_meshes(module)


def _rewrite(module: ir.Module) -> None:
    for op in operations(module):
        if (rule := REWRITES.get(op.name)) is None:
            continue
        with before(op):
            values = rule(op)
        if values is not None:
            replace(op, values)


def _check(module: ir.Module) -> None:
    for op in operations(module):
        check_readable(op)
        if has_dynamic_type(op):
            refuse(op, f"a shape is known only at run time; {STATIC}")
        if op.name == "func.func":
            _check_arguments(op)


def _check_arguments(function: ir.Operation) -> None:
    type_ = ir.TypeAttr(function.attributes["function_type"]).value
    for i, argument in enumerate(ir.FunctionType(type_).inputs):
        ranked = isinstance(argument, ir.RankedTensorType)
        if isinstance(argument, ir.MemRefType | ir.UnrankedMemRefType):
            refuse(function, f"argument {i} is {argument}; {TENSORS}")
        if isinstance(argument, ir.ShapedType) and not (
            ranked and argument.has_static_shape
        ):
            refuse(function, f"argument {i} is {argument}; {STATIC}")


# --- constants and shapes ---


def _is_static(op: ir.Operation) -> bool:
    return all(
        isinstance(r.type, ir.RankedTensorType) and r.type.has_static_shape
        for r in (*op.results, op.operands[0] if len(op.operands) else op.result)
    )


def _arith_constant(op: ir.Operation) -> Values | None:
    type_ = op.result.type
    if not isinstance(type_, ir.RankedTensorType):
        return None if list(op.result.uses) else []
    if isinstance(type_.element_type, ir.IndexType):  # StableHLO has no such tensors
        return None
    value = op.attributes["value"]
    return hlo.op("constant", [], [op.result.type], value=value).results


def _tensor_cast(op: ir.Operation) -> Values | None:
    return list(op.operands) if op.operands[0].type == op.result.type else None


def _to_reshape(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    return [hlo.reshape(op.operands[0], hlo.shape_of(op.result))]


def _to_iota(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    return [hlo.iota(op.result.type, integer(op, "iota_dimension"))]


def _to_broadcast_in_dim(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    dims = ints(op, "broadcast_dimensions")
    return [hlo.broadcast_in_dim(op.operands[0], hlo.shape_of(op.result), dims)]


def _shape_operand(op: ir.Operation, index: int) -> list[int]:
    """The integers of a shape operand, or an error: they must be constant."""
    values = evaluate(op.operands[index], limit=1024)
    if values is None:
        refuse(op, f"operand {index} is not constant; {STATIC}")
    return [int(v) for v in values.reshape(-1)]


def _to_pad(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    low, high, interior = (_shape_operand(op, i) for i in (2, 3, 4))
    return [hlo.pad(op.operands[0], op.operands[1], low, high, interior)]


def _to_slice(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    start, limit, strides = (_shape_operand(op, i) for i in (1, 2, 3))
    return [hlo.slice_(op.operands[0], start, limit, strides)]


def _to_gather(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    sizes = hlo.i64s(_shape_operand(op, 2))
    kept = _attributes(op, "dimension_numbers", "indices_are_sorted")
    operands = list(op.operands)[:2]
    types = [op.result.type]
    return hlo.op("gather", operands, types, slice_sizes=sizes, **kept).results


def _to_convolution(op: ir.Operation) -> Values | None:
    if not _is_static(op):
        return None
    flat = _shape_operand(op, 2)
    padding = hlo.i64_matrix(list(zip(flat[::2], flat[1::2], strict=True)))
    kept = {k: v for k, v in attributes(op).items() if k != "padding"}
    operands = list(op.operands)[:2]
    types = [op.result.type]
    return hlo.op("convolution", operands, types, padding=padding, **kept).results


def _to_size(op: ir.Operation) -> Values | None:
    x = op.operands[0].type
    dimension = integer(op, "dimension")
    if not isinstance(x, ir.RankedTensorType) or x.is_dynamic_dim(dimension):
        return None
    return [hlo.constant(x.shape[dimension], op.result.type)]


def _attributes(op: ir.Operation, *names: str) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in names if name in op.attributes}


# --- ops that the specification dropped ---


def _broadcast(op: ir.Operation) -> Values:
    shape = hlo.shape_of(op.result)
    new = len(ints(op, "broadcast_sizes"))
    return [hlo.broadcast_in_dim(op.operands[0], shape, range(new, len(shape)))]


def _dot(op: ir.Operation) -> Values:
    lhs, rhs = op.operands
    return [
        hlo.dot_general(
            lhs,
            rhs,
            contract=([len(hlo.shape_of(lhs)) - 1], [0]),
            element=hlo.element_type(op.result),
            precision=hlo.attribute(op, "precision_config"),
        )
    ]


def _token(op: ir.Operation) -> Values:
    return hlo.op("after_all", [], [op.result.type]).results


def _index_select(op: ir.Operation) -> Values:
    x, index = op.operands
    rank, dim, batch = (
        len(hlo.shape_of(x)),
        integer(op, "dim"),
        integer(op, "batch_dims"),
    )
    index_rank = len(hlo.shape_of(index))
    after = dim + index_rank - batch
    offset = [*range(batch, dim), *range(after, after + rank - dim - 1)]
    batching = list(range(batch))
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset, [dim], batching, batching, [dim], index_rank
    )
    sizes = [1 if d < batch or d == dim else n for d, n in enumerate(hlo.shape_of(x))]
    return hlo.op(
        "gather",
        [x, index],
        [op.result.type],
        dimension_numbers=numbers,
        slice_sizes=hlo.i64s(sizes),
    ).results


def _einsum(op: ir.Operation) -> Values:
    """One or two operands: sum what only one has, contract, put in order."""
    text = ir.StringAttr(op.attributes["einsum_config"]).value.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    repeated = any(len(set(t)) < len(t) for t in (*terms, out))
    if "." in text or not arrow or repeated or len(terms) != len(op.operands):
        refuse(op, f"{text!r} has an ellipsis or a repeated label; write a dot_general")
    kept, values = [], []
    for i, (term, x) in enumerate(zip(terms, op.operands, strict=True)):
        others = {*out, *(c for j, t in enumerate(terms) if j != i for c in t)}
        gone = [d for d, c in enumerate(term) if c not in others]
        values.append(hlo.reduce_sum(x, gone))
        kept.append([c for c in term if c in others])
    labels, value = kept[0], values[0]
    if len(values) == 2:
        labels, value = _contract(values, kept, out, hlo.element_type(op.result))
    return [hlo.transpose(value, [labels.index(c) for c in out])]


def _contract(
    values: Values, terms: Sequence[Sequence[str]], out: str, element: ir.Type
) -> tuple[list[str], ir.Value]:
    left, right = terms
    batch = [c for c in left if c in right and c in out]
    summed = [c for c in left if c in right and c not in out]
    value = hlo.dot_general(
        *values,
        batch=([left.index(c) for c in batch], [right.index(c) for c in batch]),
        contract=([left.index(c) for c in summed], [right.index(c) for c in summed]),
        element=element,
    )
    shared = {*batch, *summed}
    free = [c for term in terms for c in term if c not in shared]
    return [*batch, *free], value


REWRITES: dict[str, Callable[[ir.Operation], Values | None]] = {
    "arith.constant": _arith_constant,
    "pcp.stop_gradient": needless,
    "tensor.cast": _tensor_cast,
    "stablehlo.broadcast": _broadcast,
    "stablehlo.create_token": _token,
    "stablehlo.dot": _dot,
    "stablehlo.dynamic_broadcast_in_dim": _to_broadcast_in_dim,
    "stablehlo.dynamic_conv": _to_convolution,
    "stablehlo.dynamic_gather": _to_gather,
    "stablehlo.dynamic_iota": _to_iota,
    "stablehlo.dynamic_pad": _to_pad,
    "stablehlo.dynamic_reshape": _to_reshape,
    "stablehlo.einsum": _einsum,
    "stablehlo.get_dimension_size": _to_size,
    "stablehlo.real_dynamic_slice": _to_slice,
    "stablehlo.torch_index_select": _index_select,
    "stablehlo.unary_einsum": _einsum,
}
