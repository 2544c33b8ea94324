"""Ops that stand for others, and are differentiated as these.

Ops that the specification dropped, shapes that turn out to be constant, batch
normalization, `map`, tuples, asynchronous pairs, and CHLO's broadcasting forms.
"""

import re
from collections.abc import Callable, Sequence

from pcp.autodiff.core.bodies import lift
from pcp.autodiff.core.kinds import Decomposed, NoGradient, Refusal
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.errors import PassError
from pcp.passes.core.rewriting import splice
from pcp.passes.ingest import import_
from pcp.passes.legalize import legalize_norms

Value = ir.Value
Values = Sequence[Value]

# --- forms that pcp-import makes regular ---


def _as_imported(name: str) -> Callable[[ir.Operation], Values | None]:
    """As `pcp-import` rewrites it; None where it refuses to."""

    def expand(op: ir.Operation) -> Values | None:
        try:
            return import_.REWRITES[f"stablehlo.{name}"](op)
        except PassError:
            return None

    return expand


def _dynamic(name: str) -> Decomposed:
    return Decomposed(
        _as_imported(name),
        "shapes known only at run time have no derivative rule; pcp-import makes the "
        "op static when its shape operands are constants, else export the model with "
        "static shapes",
    )


_einsum = "its labels repeat or hold an ellipsis; write dot_general"

# --- map ---


def _map(op: ir.Operation) -> Values | None:
    block = op.regions[0].blocks[0]
    lifted = lift(block, list(op.operands), hlo.shape_of(op.results[0]))
    return None if lifted is None else lifted[0]


# --- tuples ---


def _get_tuple_element(op: ir.Operation) -> Values | None:
    """The operand of the `tuple` that it reads, also of one inside another."""
    made = op.operands[0].owner
    if isinstance(made, ir.Block):
        return None
    if made.name == "stablehlo.get_tuple_element":
        inner = _get_tuple_element(made)
        made = None if inner is None else inner[0].owner
    if made is None or isinstance(made, ir.Block) or made.name != "stablehlo.tuple":
        return None
    return [made.operands[ir.IntegerAttr(op.attributes["index"]).value]]


# --- what runs beside the program runs where it is begun ---


def _finished(op: ir.Operation) -> Values | None:
    """The region of the op that began it, in the place of the one that waits."""
    begun = op.operands[0].owner
    if isinstance(begun, ir.Block) or begun.name not in _BEGIN:
        return None
    copy = begun.operation.clone()
    results, _ = splice(copy.regions[0].blocks[0], list(copy.operands), before=copy)
    copy.erase()
    if [r.type for r in results] != [r.type for r in op.results]:
        return None
    return results


def _if_unread(op: ir.Operation) -> Values | None:
    """Gone with the last op that read it."""
    return None if list(op.results[0].uses) else list(op.results)


_BEGIN = ("stablehlo.async_start", "pcp.start")
_PAIR = "its two ends are not in one block; wait where the future is begun"

# --- CHLO: operands of different shapes ---


def _broadcasting(name: str) -> Callable[[ir.Operation], Values | None]:
    """`name` of the operands broadcast to the result's shape."""

    def expand(op: ir.Operation) -> Values | None:
        shape = hlo.shape_of(op.results[0])
        given = hlo.attribute(op, "broadcast_dimensions")
        wide = []
        for x in op.operands:
            rank = len(hlo.shape_of(x))
            dims = list(range(len(shape) - rank, len(shape)))
            if given is not None and rank < len(shape):
                dims = list(ir.DenseI64ArrayAttr(given))
            wide.append(hlo.broadcast_in_dim(x, shape, dims))
        if name == "compare":
            return [hlo.compare(*_comparison(op, wide))]
        return hlo.op(name, wide, [op.results[0].type]).results

    return expand


def _comparison(op: ir.Operation, operands: Values) -> tuple:
    """What `hlo.compare` takes; CHLO's attributes have no Python classes."""
    words = [
        str(op.attributes[name]).removesuffix(">").split()[-1]
        for name in ("comparison_direction", "compare_type")
        if name in op.attributes
    ]
    return words[0], *operands, *words[1:]


_BROADCASTING = {
    f"chlo.broadcast_{name}": Decomposed(_broadcasting(name))
    for name in (
        "add atan2 complex divide maximum minimum multiply power remainder select "
        "subtract"
    ).split()
} | {
    f"chlo.broadcast_{name}": Decomposed(_broadcasting(f"chlo.{name}"))
    for name in ("polygamma", "zeta")
}
_INTEGER = {
    f"chlo.broadcast_{name}": NoGradient("its results are integers or booleans")
    for name in (
        "and compare or shift_left shift_right_arithmetic shift_right_logical xor"
    ).split()
}

# --- products of groups of rows ---


class _Ragged:
    """`#chlo.ragged_dot<...>`: dimension numbers of a dot_general, and the groups."""

    def __init__(self, op: ir.Operation) -> None:
        text = str(op.attributes["ragged_dot_dimension_numbers"])

        def read(name: str) -> list[int]:
            found = re.search(rf"{name} = \[([\d, ]*)\]", text)
            return [int(n) for n in found[1].split(",")] if found else []

        self.batch = read("lhs_batching_dimensions"), read("rhs_batching_dimensions")
        self.contract = (
            read("lhs_contracting_dimensions"),
            read("rhs_contracting_dimensions"),
        )
        (self.ragged,) = read("lhs_ragged_dimensions")
        self.group = read("rhs_group_dimensions")

    def prefix(self, side: int, rank: int, ragged: int) -> list[int]:
        """The dimensions that sizes of groups may differ along, before `ragged`."""
        batch, contract = self.batch[side], self.contract[side]
        free = [d for d in range(rank) if d not in {*batch, *contract}]
        row = contract if ragged in contract else free
        return [*batch, *row[: row.index(ragged)]]


def _by_group(x: Value, sizes: Value, ragged: int, prefix: list[int]) -> Value:
    """[g, *x]: x where `ragged` lies in group g, zero elsewhere."""
    *outer, groups = hlo.shape_of(sizes)
    shape = (groups, *hlo.shape_of(x))
    element = hlo.element_type(sizes)
    square = hlo.tensor((*outer, groups, groups), element)
    rank = len(outer) + 2
    before = hlo.compare("LT", hlo.iota(square, rank - 1), hlo.iota(square, rank - 2))
    each = hlo.broadcast_in_dim(
        sizes, hlo.shape_of(square), [*range(rank - 2), rank - 1]
    )
    start = hlo.reduce_sum(hlo.select(before, each, hlo.zeros(square)), [rank - 1])
    places = [*(d + 1 for d in prefix[: len(outer)]), 0]
    low, high = (_spread(v, shape, places) for v in (start, hlo.add(start, sizes)))
    position = hlo.iota(hlo.tensor(shape, element), ragged + 1)
    inside = hlo.and_(
        hlo.compare("GE", position, low), hlo.compare("LT", position, high)
    )
    wide = hlo.broadcast_in_dim(x, shape, range(1, len(shape)))
    return hlo.select(inside, wide, hlo.zeros(wide.type))


def _spread(x: Value, shape: Sequence[int], places: list[int]) -> Value:
    """Broadcast with dimension i to `places[i]`, in any order."""
    order = sorted(range(len(places)), key=places.__getitem__)
    return hlo.broadcast_in_dim(
        hlo.transpose(x, order), shape, [places[i] for i in order]
    )


def _later(pair: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """The dimensions behind a new first one."""
    return [d + 1 for d in pair[0]], [d + 1 for d in pair[1]]


def _ragged_dot(op: ir.Operation) -> Values | None:
    """As dense products over all groups, masked."""
    if len(op.operands) != 3:
        return None
    lhs, rhs, sizes = op.operands
    how = _Ragged(op)
    batch, contract = how.batch, how.contract
    next_batch, next_contract = _later(batch), _later(contract)
    if how.ragged not in batch[0]:
        rank = len(hlo.shape_of(lhs))
        lhs = _by_group(lhs, sizes, how.ragged, how.prefix(0, rank, how.ragged))
    if how.ragged in contract[0]:
        other = contract[1][contract[0].index(how.ragged)]
        rank = len(hlo.shape_of(rhs))
        rhs = _by_group(rhs, sizes, other, how.prefix(1, rank, other))
        batch = [0, *next_batch[0]], [0, *next_batch[1]]
        contract = next_contract
    elif how.ragged not in batch[0]:
        batch = next_batch[0], batch[1]
        contract = [*next_contract[0], 0], [*contract[1], how.group[0]]
    return [
        hlo.dot_general(
            lhs,
            rhs,
            batch=batch,
            contract=contract,
            element=hlo.element_type(op.results[0]),
            precision=_precision(op),
        )
    ]


def _precision(op: ir.Operation) -> ir.Attribute | None:
    given = hlo.attribute(op, "precision_config")
    if given is None:
        return None
    words = [str(p).removesuffix(">").split()[-1] for p in ir.ArrayAttr(given)]
    return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(word) for word in words])


RULES = {
    # --- dropped from the specification ---
    "broadcast": Decomposed(_as_imported("broadcast")),
    "dot": Decomposed(_as_imported("dot")),
    "einsum": Decomposed(_as_imported("einsum"), _einsum),
    "unary_einsum": Decomposed(_as_imported("unary_einsum"), _einsum),
    "torch_index_select": Decomposed(_as_imported("torch_index_select")),
    # --- dynamic shapes ---
    "dynamic_broadcast_in_dim": _dynamic("dynamic_broadcast_in_dim"),
    "dynamic_conv": _dynamic("dynamic_conv"),
    "dynamic_gather": _dynamic("dynamic_gather"),
    "dynamic_pad": _dynamic("dynamic_pad"),
    "dynamic_reshape": _dynamic("dynamic_reshape"),
    "real_dynamic_slice": _dynamic("real_dynamic_slice"),
    "set_dimension_size": Refusal(
        "its result has a size known only at run time; pad to a static size and mask"
    ),
    # --- quantized numbers ---
    "uniform_quantize": Refusal(
        "rounding to a quantized type has no useful derivative; train on the float "
        "model, or write the straight-through estimate as x + pcp.stop_gradient(q - x)"
    ),
    "uniform_dequantize": Refusal(
        "what was quantized depends on what is differentiated; train on the float "
        "model, or put pcp.stop_gradient on the quantized path"
    ),
    # --- batch normalization ---
    "batch_norm_training": Decomposed(legalize_norms.training),
    "batch_norm_inference": Decomposed(legalize_norms.inference),
    "batch_norm_grad": Decomposed(legalize_norms.gradient),
    # --- structure ---
    "map": Decomposed(_map, "its body holds an op that is not elementwise"),
    "tuple": Decomposed(
        _if_unread,
        "a tuple that is not read by get_tuple_element in the same function has no "
        "derivative; return its elements",
    ),
    "get_tuple_element": Decomposed(
        _get_tuple_element,
        "the tuple does not come from a stablehlo.tuple in the same function; pass "
        "its elements",
    ),
    "async_start": Decomposed(_if_unread, _PAIR),
    "async_done": Decomposed(_finished, _PAIR),
    "pcp.start": Decomposed(_if_unread, _PAIR),
    "pcp.wait": Decomposed(_finished, _PAIR),
    # --- CHLO ---
    **_BROADCASTING,
    **_INTEGER,
    "chlo.broadcast_next_after": NoGradient("piecewise constant steps between numbers"),
    "chlo.ragged_dot": Decomposed(
        _ragged_dot, "a group offset has no derivative rule; slice the groups first"
    ),
    "chlo.scan": Refusal(
        "it has no derivative rule; write stablehlo.while, or for an associative body "
        "stablehlo.reduce_window"
    ),
    "chlo._asin_acos_kernel": Refusal(
        "it is a step of legalizing asin and acos; differentiate before "
        "chlo-legalize-to-stablehlo"
    ),
}
