"""The factor rule of every op, by name.

`rule_of(op)` is None for an op that can only run whole: a custom call, random bits,
anything unknown. Such an op is always correct on replicated operands.

Control flow has no rule: its values hang together by `flow`.
"""

from collections.abc import Callable
from math import gcd

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.hlo_indexing import Windows
from pcp.dialect.hlo_windows import Convolution, dilated
from pcp.passes import constants
from pcp.passes.elementwise import ELEMENTWISE, body_kind
from pcp.passes.rewriting import integer, ints
from pcp.passes.sharding.factors import PASS, REPLICATE, Dim, Rule, Rules


def rule_of(op: ir.Operation) -> Rule | None:
    """How the op's tensors hang together, or None: it runs whole."""
    if not all(map(_is_static, (*op.operands, *op.results))):
        return None
    build = RULES.get(op.name)
    return None if build is None else build(op)


def _is_static(value: ir.Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


# --- elementwise ---


def _elementwise(op: ir.Operation) -> Rule | None:
    """One factor a dimension; a rank-0 operand beside larger ones has none."""
    shape = _shape(op.results[0])
    rules = Rules()
    dims = rules.dims(shape)
    operands: list[list[Dim]] = []
    for operand in op.operands:
        if _shape(operand) == shape:
            operands.append(dims)
        elif not _shape(operand):
            operands.append([])
        else:
            return None  # a bitcast between widths
    return rules.done(operands, [dims] * len(op.results))


def _pairs(op: ir.Operation) -> Rule:
    """Operand i is result i."""
    rules = Rules()
    dims = [rules.dims(_shape(v)) for v in op.operands]
    return rules.done(dims, dims)


def _source(op: ir.Operation) -> Rule:
    """A constant or iota: cut as its users want it."""
    rules = Rules()
    return rules.done([], [rules.dims(_shape(op.results[0]))])


# --- movement ---


def _broadcast_in_dim(op: ir.Operation) -> Rule:
    rules = Rules()
    source = _shape(op.operands[0])
    result = rules.dims(_shape(op.results[0]))
    operand: list[Dim] = []
    for n, d in zip(source, ints(op, "broadcast_dimensions"), strict=True):
        kept = n == rules.sizes[result[d][0]]
        operand.append(result[d] if kept else (rules.factor(n, REPLICATE),))
    return rules.done([operand], [result])


def _transpose(op: ir.Operation) -> Rule:
    rules = Rules()
    operand = rules.dims(_shape(op.operands[0]))
    return rules.done([operand], [[operand[p] for p in ints(op, "permutation")]])


def _reshape(op: ir.Operation) -> Rule:
    rules = Rules()
    operand, result = _common_factors(
        rules, _shape(op.operands[0]), _shape(op.results[0])
    )
    return rules.done([operand], [result])


def _common_factors(
    rules: Rules, a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[list[Dim], list[Dim]]:
    """Both shapes as products of common factors: `[8,16] -> [8,4,4]` is i,jk -> i,j,k.

    Where they have none (`[4,3] -> [6,2]` after the common 2), what is left up to the
    next place at which both agree cannot be cut.
    """
    if 0 in a:
        return rules.dims(a, REPLICATE), rules.dims(b, REPLICATE)
    left: list[Dim] = [() for _ in a]
    right: list[Dim] = [() for _ in b]
    for side, shape in ((left, a), (right, b)):
        for d, n in enumerate(shape):
            if n == 1:
                side[d] = (rules.factor(1, REPLICATE),)
    xs = [(d, n) for d, n in enumerate(a) if n != 1]
    ys = [(d, n) for d, n in enumerate(b) if n != 1]
    while xs and ys:
        (i, m), (j, n) = xs.pop(0), ys.pop(0)
        common = gcd(m, n)
        if common > 1:
            factor = rules.factor(common)
            left[i] += (factor,)
            right[j] += (factor,)
            if m > common:
                xs.insert(0, (i, m // common))
            if n > common:
                ys.insert(0, (j, n // common))
            continue
        _opaque(rules, left, (i, m), xs, right, (j, n), ys)
    return left, right


def _opaque(
    rules: Rules,
    left: list[Dim],
    x: tuple[int, int],
    xs: list[tuple[int, int]],
    right: list[Dim],
    y: tuple[int, int],
    ys: list[tuple[int, int]],
) -> None:
    """Use up dimensions of both sides until their products agree."""
    (i, m), (j, n) = x, y
    left[i] += (rules.factor(m, REPLICATE),)
    right[j] += (rules.factor(n, REPLICATE),)
    while m != n:
        if m < n:
            d, size = xs.pop(0)
            left[d] += (rules.factor(size, REPLICATE),)
            m *= size
        else:
            d, size = ys.pop(0)
            right[d] += (rules.factor(size, REPLICATE),)
            n *= size


def _unchanged(op: ir.Operation, changed: set[int]) -> Rule:
    """Tensors of one rank; dimensions outside of `changed` go through."""
    rules = Rules()
    tensors = [v for v in (*op.operands, *op.results) if _shape(v)]
    shared: dict[int, Dim] = {}
    for d, n in enumerate(_shape(op.results[0])):
        if d not in changed:
            shared[d] = (rules.factor(n),)

    def dims(value: ir.Value) -> list[Dim]:
        return [
            shared[d] if d in shared else (rules.factor(n, REPLICATE),)
            for d, n in enumerate(_shape(value))
        ]

    known = {v: dims(v) for v in tensors}
    return rules.done(
        [known.get(v, []) for v in op.operands], [known.get(v, []) for v in op.results]
    )


def _differing(op: ir.Operation) -> set[int]:
    """The dimensions in which operand 0 and the result differ."""
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    return {d for d, (m, n) in enumerate(zip(before, after, strict=True)) if m != n}


def _slice(op: ir.Operation) -> Rule:
    return _unchanged(op, _differing(op))


def _pad(op: ir.Operation) -> Rule:
    attributes = ("edge_padding_low", "edge_padding_high", "interior_padding")
    padded = {d for name in attributes for d, n in enumerate(ints(op, name)) if n}
    return _unchanged(op, padded)


def _concatenate(op: ir.Operation) -> Rule:
    return _unchanged(op, {integer(op, "dimension")})


def _reverse(op: ir.Operation) -> Rule:
    return _unchanged(op, set(ints(op, "dimensions")))


def _sort(op: ir.Operation) -> Rule:
    return _unchanged(op, {integer(op, "dimension")})


def _dynamic_update_slice(op: ir.Operation) -> Rule:
    whole, update = _shape(op.operands[0]), _shape(op.operands[1])
    moved = {d for d, (m, n) in enumerate(zip(whole, update, strict=True)) if m != n}
    return _unchanged(op, moved)


def _fft(op: ir.Operation) -> Rule:
    rank = len(_shape(op.results[0]))
    return _unchanged(op, set(range(rank - len(ints(op, "fft_length")), rank)))


# --- reductions ---

_NEUTRAL = {"add": 0, "multiply": 1}
_KINDS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}


def reduction_kind(block: ir.Block, init: ir.Value) -> str | None:
    """The collective that joins partial results, if the body and its init have one.

    Each member starts from `init`, so it has to be the body's neutral element.
    """
    body = body_kind(block) or ""
    element = hlo.element_type(init)
    kind = _KINDS.get(body)
    if kind is None or (hlo.is_complex(element) and kind != "sum"):
        return None
    number = constants.splat(init)
    if number is None or (isinstance(element, ir.IntegerType) and element.width == 1):
        return None
    if kind in ("max", "min"):
        return kind if _is_extreme(number, element, kind) else None
    return kind if number == _NEUTRAL[body] else None


def _is_extreme(number: float | int, element: ir.Type, kind: str) -> bool:
    if hlo.is_float(element):
        return number == (float("-inf") if kind == "max" else float("inf"))
    integer_type = ir.IntegerType(element)
    bits = integer_type.width
    if integer_type.is_unsigned:
        low, high = 0, 2**bits - 1
    else:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return number == (low if kind == "max" else high)


def _reduce(op: ir.Operation) -> Rule:
    """Reduced dimensions are partial results where a collective can join them."""
    count = len(op.operands) // 2
    gone = set(ints(op, "dimensions"))
    kind = REPLICATE
    if count == 1:
        kind = reduction_kind(op.regions[0].blocks[0], op.operands[1]) or REPLICATE
    rules = Rules()
    dims = [
        (rules.factor(n, kind if d in gone else PASS),)
        for d, n in enumerate(_shape(op.operands[0]))
    ]
    kept = [dim for d, dim in enumerate(dims) if d not in gone]
    return rules.done([dims] * count + [[]] * count, [kept] * count)


def _windowed(op: ir.Operation) -> set[int]:
    """Dimensions along which a reduce_window or select_and_scatter looks around."""
    rank = len(_shape(op.operands[0]))
    window = ints(op, "window_dimensions") or [1] * rank
    moved = {d for d, n in enumerate(window) if n != 1}
    for name in ("window_strides", "base_dilations", "window_dilations"):
        moved |= {d for d, n in enumerate(ints(op, name)) if n != 1}
    if "padding" in op.attributes:
        flat = list(ir.DenseIntElementsAttr(op.attributes["padding"]))
        flat = flat * (2 * rank) if len(flat) == 1 else flat
        moved |= {i // 2 for i, n in enumerate(flat) if n}
    return moved


def _reduce_window(op: ir.Operation) -> Rule:
    return _unchanged(op, _windowed(op))


# --- contractions ---


def _dot_general(op: ir.Operation) -> Rule:
    n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lb, rb = list(n.lhs_batching_dimensions), list(n.rhs_batching_dimensions)
    lc, rc = list(n.lhs_contracting_dimensions), list(n.rhs_contracting_dimensions)
    return contraction(Rules(), op, (lb, rb), (lc, rc))


def contraction(
    rules: Rules,
    op: ir.Operation,
    batch: tuple[list[int], list[int]],
    contract: tuple[list[int], list[int]],
) -> Rule:
    """Batch and free dimensions go through, contracted ones leave partial sums."""
    sides: list[dict[int, Dim]] = [{}, {}]
    ls, rs = _shape(op.operands[0]), _shape(op.operands[1])
    kind = REPLICATE if _is_predicate(op.results[0]) else "sum"
    for (left, right), what in ((batch, PASS), (contract, kind)):
        for i, j in zip(left, right, strict=True):
            sides[0][i] = sides[1][j] = (rules.factor(ls[i], what),)
    result = [sides[0][i] for i in batch[0]]
    for side, shape in zip(sides, (ls, rs), strict=True):
        for d, n in enumerate(shape):
            if d not in side:
                side[d] = (rules.factor(n),)
                result.append(side[d])
    dims = [[side[d] for d in range(len(side))] for side in sides]
    return rules.done(dims, [result])


def _is_predicate(value: ir.Value) -> bool:
    element = hlo.element_type(value)
    return isinstance(element, ir.IntegerType) and element.width == 1


def _dot(op: ir.Operation) -> Rule:
    rank = len(_shape(op.operands[0]))
    return contraction(Rules(), op, ([], []), ([rank - 1], [0]))


def _convolution(op: ir.Operation) -> Rule:
    """Batch and features; spatial dimensions only where the window is one element.

    With groups the feature (or batch) dimension is group-major.
    """
    conv = Convolution.of(op)
    rules = Rules()
    x, k, y = (_shape(v) for v in (*op.operands, *op.results))
    (xb, xf, xs), (ki, ko, ks), (yb, yf, ys) = (
        conv.dims.input,
        conv.dims.kernel,
        conv.dims.output,
    )
    groups, batch_groups = conv.feature_groups, conv.batch_groups
    left: dict[int, Dim] = {}
    kernel: dict[int, Dim] = {}
    result: dict[int, Dim] = {}
    batch = rules.factor(y[yb])
    summed = rules.factor(k[ki], "sum")
    group = rules.factor(max(groups, batch_groups))
    outs = rules.factor(k[ko] // max(groups, batch_groups))
    left[xb], left[xf] = (batch,), (summed,)
    if groups > 1:
        left[xf] = (group, summed)
    if batch_groups > 1:
        left[xb] = (group, batch)
    many = max(groups, batch_groups) > 1
    kernel[ki] = (summed,)
    kernel[ko] = result[yf] = (group, outs) if many else (outs,)
    result[yb] = (batch,)
    for s in range(len(xs)):
        plain = (
            k[ks[s]] == 1
            and dilated(x[xs[s]], 1) == y[ys[s]]
            and conv.strides[s] == 1
            and conv.lhs_dilation[s] == 1
            and tuple(conv.padding[s]) == (0, 0)
        )
        left[xs[s]] = (rules.factor(x[xs[s]], PASS if plain else REPLICATE),)
        kernel[ks[s]] = (rules.factor(k[ks[s]], REPLICATE),)
        result[ys[s]] = left[xs[s]] if plain else (rules.factor(y[ys[s]], REPLICATE),)
    dims = [[d[i] for i in range(len(d))] for d in (left, kernel, result)]
    return rules.done(dims[:2], dims[2:])


# --- gather and scatter ---


def _batch_dims(
    rules: Rules, windows: Windows, indices: tuple[int, ...], kind: str
) -> tuple[list[Dim], list[Dim]]:
    """The indices' dimensions, and those among them that a batch runs along."""
    dims: list[Dim] = []
    batch: list[Dim] = []
    for d, n in enumerate(indices):
        if d == windows.index_vector:
            dims.append((rules.factor(n, REPLICATE),))
            continue
        own = kind if d not in windows.indices_batching else PASS
        dims.append((rules.factor(n, own),))
        batch.append(dims[-1])
    return dims, batch


def _windows_dims(
    rules: Rules,
    windows: Windows,
    operand: tuple[int, ...],
    sizes: list[int],
    indices: list[Dim],
    looked_up: str,
) -> tuple[list[Dim], list[Dim]]:
    """The operand's dimensions, and those among them that run inside a window.

    A dimension of which single elements are looked up is of kind `looked_up`: each
    member finds those that it has.
    """
    paired = dict(zip(windows.operand_batching, windows.indices_batching, strict=True))
    dims: list[Dim] = []
    inside: list[Dim] = []
    for d, n in enumerate(operand):
        if d in paired:
            dims.append(indices[paired[d]])
        elif d in windows.collapsed:
            found = d in windows.index_map and sizes[d] == 1
            dims.append((rules.factor(n, looked_up if found else REPLICATE),))
        else:
            whole = sizes[d] == n
            dims.append((rules.factor(n, PASS if whole else REPLICATE),))
            inside.append(dims[-1] if whole else (rules.factor(sizes[d], REPLICATE),))
    return dims, inside


def _interleave(offset: tuple[int, ...], inside: list[Dim], batch: list[Dim]):
    """Window dimensions at the places `offset`, batch dimensions at the others."""
    window, rest = iter(inside), iter(batch)
    places = range(len(inside) + len(batch))
    return [next(window) if d in set(offset) else next(rest) for d in places]


def _gather(op: ir.Operation) -> Rule:
    """Looking up in a cut dimension gives each member the rows it has, else zeros."""
    windows = Windows.of_gather(op.attributes["dimension_numbers"])
    rules = Rules()
    indices, batch = _batch_dims(rules, windows, _shape(op.operands[1]), PASS)
    kind = REPLICATE if _is_predicate(op.results[0]) else "sum"
    operand, inside = _windows_dims(
        rules,
        windows,
        _shape(op.operands[0]),
        ints(op, "slice_sizes"),
        indices,
        kind,
    )
    result = _interleave(windows.offset, inside, batch)
    return rules.done([operand, indices], [result])


def _scatter(op: ir.Operation) -> Rule:
    """A cut dimension takes the updates that fall into it; cut updates add up."""
    windows = Windows.of_scatter(op.attributes["scatter_dimension_numbers"])
    count = len(op.operands) // 2
    rules = Rules()
    body = body_kind(op.regions[0].blocks[0]) if count == 1 else None
    kind = {"add": "sum", "maximum": "max", "minimum": "min"}.get(body or "", REPLICATE)
    if _is_predicate(op.results[0]):
        kind = REPLICATE
    indices, batch = _batch_dims(rules, windows, _shape(op.operands[count]), kind)
    whole = _shape(op.operands[0])
    sizes = windows.window_sizes(whole, _shape(op.operands[count + 1]))
    operand, inside = _windows_dims(rules, windows, whole, sizes, indices, PASS)
    updates = _interleave(windows.offset, inside, batch)
    return rules.done(
        [operand] * count + [indices] + [updates] * count, [operand] * count
    )


# --- linear algebra: whole matrices, batches go through ---


def _cholesky(op: ir.Operation) -> Rule:
    rank = len(_shape(op.results[0]))
    return _unchanged(op, {rank - 2, rank - 1})


def _triangular_solve(op: ir.Operation) -> Rule:
    """The right-hand sides are solved for independently."""
    rules = Rules()
    *batch, m, n = _shape(op.operands[1])
    shared = rules.dims(tuple(batch))
    left = ir.BoolAttr(op.attributes["left_side"]).value
    order = m if left else n
    matrix = [(rules.factor(order, REPLICATE),) for _ in range(2)]
    bound = (rules.factor(order, REPLICATE),)
    free = (rules.factor(n if left else m),)
    b = [*shared, bound, free] if left else [*shared, free, bound]
    return rules.done([[*shared, *matrix], b], [b])


def _batch_norm(op: ir.Operation) -> Rule:
    """The features; in inference, which takes no mean, everything else too."""
    rules = Rules()
    feature = ir.IntegerAttr(op.attributes["feature_index"]).value
    shape = _shape(op.operands[0])
    kind = PASS if op.name.endswith("inference") else REPLICATE
    dims = [
        (rules.factor(n, PASS if d == feature else kind),) for d, n in enumerate(shape)
    ]

    def tensor(value: ir.Value) -> list[Dim]:
        return dims if _shape(value) == shape else [dims[feature]]

    return rules.done(map(tensor, op.operands), map(tensor, op.results))


def _top_k(op: ir.Operation) -> Rule:
    return _unchanged(op, {len(_shape(op.operands[0])) - 1})


_CHLO_ELEMENTWISE = (
    "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc "
    "is_inf is_neg_inf is_pos_inf lgamma next_after polygamma sinh square tan zeta"
).split()

RULES: dict[str, Callable[[ir.Operation], Rule | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys((f"chlo.{name}" for name in _CHLO_ELEMENTWISE), _elementwise),
    "arith.constant": _source,
    "chlo.top_k": _top_k,
    "pcp.barrier_prop": _elementwise,
    "pcp.constraint": _elementwise,
    "pcp.reshard": _elementwise,
    "pcp.stop_gradient": _elementwise,
    **dict.fromkeys(
        (f"stablehlo.batch_norm_{name}" for name in ("grad", "inference", "training")),
        _batch_norm,
    ),
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _source,
    "stablehlo.convolution": _convolution,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": _slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _source,
    "stablehlo.map": _elementwise,
    "stablehlo.optimization_barrier": _pairs,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _reduce_window,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
    "stablehlo.triangular_solve": _triangular_solve,
}
