"""Where a gather reads and a scatter writes: in range or not, found or made so."""

from pcp.autodiff.core.kinds import Site
from pcp.autodiff.core.values import constant_array
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import (
    Windows,
    clamp_indices,
    gather,
    index_limits,
    scatter,
)

Value = ir.Value


def in_range(
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


def flag(at: Site, name: str) -> bool:
    """A boolean attribute; absent is false."""
    found = at.attribute(name)
    return found is not None and ir.BoolAttr(found).value


class Place:
    """Where a scatter writes: its windows, clamped, and which were dropped.

    A window that does not fit is dropped whole, as XLA does.
    """

    def __init__(self, at: Site) -> None:
        count = len(at.op.results)
        self.windows = Windows.of_scatter(at.attribute("scatter_dimension_numbers"))
        self.operand_shape = hlo.shape_of(at[0])
        self.raw = at[count]
        self.update_type = at[count + 1].type
        shape = hlo.shape_of(self.update_type)
        self.sizes = self.windows.window_sizes(self.operand_shape, shape)
        self.is_sorted = flag(at, "indices_are_sorted")
        self.unique = flag(at, "unique_indices")
        self.fits = in_range(self.raw, self.windows, self.operand_shape, self.sizes)
        self.indices = (
            self.raw
            if self.fits
            else clamp_indices(self.raw, self.windows, self.operand_shape, self.sizes)
        )

    def read(self, x: Value) -> Value:
        """x where each update was written."""
        return gather(
            x, self.indices, self.windows, self.sizes, is_sorted=self.is_sorted
        )

    def write(self, onto: Value, updates: Value, combine, unique: bool) -> Value:
        """Another scatter to the same positions."""
        return scatter(
            onto,
            self.raw,
            updates,
            self.windows,
            combine,
            is_sorted=self.is_sorted,
            unique=unique,
        )

    def kept(self, x: Value) -> Value:
        """x, or zero in updates that were dropped."""
        if self.fits:
            return x
        return hlo.select(self.landed(), x, hlo.zeros(x.type))

    def landed(self) -> Value:
        """Which updates were written, in the updates' shape."""
        inside = hlo.compare("EQ", self.raw, self.indices)
        i1 = hlo.element_type(inside)
        vector = self.windows.index_vector
        if vector < len(hlo.shape_of(inside)):
            inside = hlo.reduce(inside, hlo.scalar(True, i1), [vector], hlo.and_)
        shape = hlo.shape_of(self.update_type)
        batch = [d for d in range(len(shape)) if d not in set(self.windows.offset)]
        return hlo.broadcast_in_dim(inside, shape, batch)
