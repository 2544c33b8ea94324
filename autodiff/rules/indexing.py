"""Data movement with positions known at run time: gather, scatter, dynamic slices.

Positions are integers and have no cotangent. A gather moves an out-of-range
window to where it fits, a scatter drops it; a transpose must do what its primal
did, so a gather's clamps its indices first.
"""

from pcp.autodiff.kinds import Linear, Site
from pcp.autodiff.rules.values import constant_array
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, clamp_indices, index_limits, scatter

Value = ir.Value


def _gather(at: Site, g: Value) -> Value:
    """Scatter-add of g onto zeros, at the positions that were read."""
    operand, indices = at[0], at[1]
    windows = Windows.of_gather(at.attribute("dimension_numbers"))
    sizes, shape = at.ints("slice_sizes"), hlo.shape_of(operand)
    if not _in_range(indices, windows, shape, sizes):
        indices = clamp_indices(indices, windows, shape, sizes)
    is_sorted = at.attribute("indices_are_sorted")
    return scatter(
        hlo.zeros(operand.type),
        indices,
        g,
        windows,
        hlo.add,
        is_sorted=bool(is_sorted and ir.BoolAttr(is_sorted).value),
    )


def _in_range(
    indices: Value, windows: Windows, shape: tuple[int, ...], sizes: list[int]
) -> bool:
    """Whether constant indices all lie where the whole window fits."""
    found = constant_array(indices)
    if found is None:
        return False
    if windows.index_vector < found.ndim:
        parts = [
            found.take(k, windows.index_vector) for k in range(len(windows.index_map))
        ]
    else:
        parts = [found]
    limits = index_limits(windows, shape, sizes)
    return all(
        ((part >= 0) & (part <= limit)).all()
        for part, limit in zip(parts, limits, strict=True)
    )


def _dynamic_slice(at: Site, g: Value) -> Value:
    """Both ops clamp their starts alike, so this is exact out of bounds too."""
    return hlo.dynamic_update_slice(hlo.zeros(at[0].type), g, list(at.op.operands)[1:])


def _updated(at: Site, g: Value) -> Value:
    """What was overwritten gets nothing."""
    return hlo.dynamic_update_slice(g, hlo.zeros(at[1].type), list(at.op.operands)[2:])


def _update(at: Site, g: Value) -> Value:
    return hlo.dynamic_slice(g, list(at.op.operands)[2:], hlo.shape_of(at[1]))


RULES = {
    "gather": Linear(_gather, None),
    "dynamic_slice": Linear(_dynamic_slice),
    "dynamic_update_slice": Linear(_updated, _update),
}
