"""Torch's options under pcp's names: reductions, and a time limit."""

from typing import Any

import numpy as np
import torch.distributed as dist

from pcp.errors import UsageError

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
_BITWISE = {
    dist.ReduceOp.BAND: np.bitwise_and,
    dist.ReduceOp.BOR: np.bitwise_or,
    dist.ReduceOp.BXOR: np.bitwise_xor,
}


def word_of(op: Any) -> str:
    """The reduction's name; UsageError when there is none."""
    for known, word in _OPS.items():
        if op == known:
            return word
    name = getattr(getattr(op, "op", op), "name", str(op))
    raise UsageError(
        f"the pcp backend has no {name} here; there are {', '.join(_OPS.values())}."
        + (" Multiply the tensor first, then sum it." if name == "PREMUL_SUM" else "")
    )


def bitwise_of(op: Any) -> np.ufunc | None:
    """The numpy function of a bitwise reduction; None for other reductions."""
    return next((ufunc for known, ufunc in _BITWISE.items() if op == known), None)


def patience_of(opts: Any) -> float | None:
    """A call's own time limit in seconds; None for the group's."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0
    return seconds if seconds > 0 else None
