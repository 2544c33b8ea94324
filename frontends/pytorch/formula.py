"""What the tables of formulas share."""

from collections.abc import Callable
from typing import Any

from pcp.frontends.pytorch import marks

Formula = Callable[..., Any]


class Formulas:
    """Formulas of ATen ops; methods take what the op of their name takes."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.aten = torch, torch.ops.aten

    def stop(self, x: Any) -> Any:
        """The value without a gradient."""
        return marks.ops().stop_gradient(x)
