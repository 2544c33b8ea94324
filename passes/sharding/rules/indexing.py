"""gather and scatter."""

from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import ints
from pcp.passes.sharding.factors import PASS, REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import is_predicate, shape_of


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


def gather(op: ir.Operation) -> FactorRule:
    """Looking up in a cut dimension gives each member the rows it has, else zeros."""
    windows = Windows.of_gather(op.attributes["dimension_numbers"])
    rules = Rules()
    indices, batch = _batch_dims(rules, windows, shape_of(op.operands[1]), PASS)
    kind = REPLICATE if is_predicate(op.results[0]) else "sum"
    operand, inside = _windows_dims(
        rules,
        windows,
        shape_of(op.operands[0]),
        ints(op, "slice_sizes"),
        indices,
        kind,
    )
    result = _interleave(windows.offset, inside, batch)
    return rules.done([operand, indices], [result])


def scatter(op: ir.Operation) -> FactorRule:
    """A cut dimension takes the updates that fall into it; cut updates add up."""
    windows = Windows.of_scatter(op.attributes["scatter_dimension_numbers"])
    count = len(op.operands) // 2
    rules = Rules()
    body = body_kind(op.regions[0].blocks[0]) if count == 1 else None
    kind = {"add": "sum", "maximum": "max", "minimum": "min"}.get(body or "", REPLICATE)
    if is_predicate(op.results[0]):
        kind = REPLICATE
    indices, batch = _batch_dims(rules, windows, shape_of(op.operands[count]), kind)
    whole = shape_of(op.operands[0])
    sizes = windows.window_sizes(whole, shape_of(op.operands[count + 1]))
    operand, inside = _windows_dims(rules, windows, whole, sizes, indices, PASS)
    updates = _interleave(windows.offset, inside, batch)
    return rules.done(
        [operand] * count + [indices] + [updates] * count, [operand] * count
    )
