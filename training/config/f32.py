"""Numbers of an experiment that compiled code has as f32."""

from typing import Annotated

import numpy as np
from pydantic import AfterValidator


def _held_by_f32(value: float) -> float:
    """A number that compiled code has as f32: neither infinite there, nor zero."""
    with np.errstate(over="ignore", under="ignore"):
        held = float(np.float32(value))
    if not np.isfinite(held) or (value and not held):
        limits = np.finfo(np.float32)
        raise ValueError(
            f"{value:g} is {held:g} as f32, in which it is computed; at most "
            f"{limits.max:.2g}, and not between 0 and {limits.smallest_subnormal:.1g}"
        )
    return value


F32 = Annotated[float, AfterValidator(_held_by_f32)]
