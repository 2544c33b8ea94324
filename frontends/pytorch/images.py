"""Ops on images that torch-mlir has no lowering of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Images:
    """See `pytorch.formulas`."""

    torch: Any

    def nearest(
        self, x: Any, output_size: Sequence[int] | None, factors: Sequence[float] | None
    ) -> Any:
        """`upsample_nearest2d` of `[n, c, h, w]`.

        By whole factors each pixel is repeated, and its gradient is a sum, not a
        scatter; others are torch's own formula.
        """
        n, c, h, w = x.shape
        sizes = zip(output_size or (), (h, w), strict=False)
        given = factors or [made / size for made, size in sizes]
        if any(f < 1 or f != int(f) for f in given):
            table = self.torch._decomp.decomposition_table
            own = table[self.torch.ops.aten.upsample_nearest2d.vec]
            return own(x, output_size, factors)
        a, b = (int(f) for f in given)
        repeated = x[:, :, :, None, :, None].expand(n, c, h, a, w, b)
        return repeated.reshape(n, c, h * a, w * b)
