"""Random ops of PyTorch as what they draw: uniform numbers of a counted generator.

torch's generators have a place of their own in time; a program has a key. So each op
that draws is written with `pcp::uniform(shape, number)`, which `pytorch.marks` cuts out
and puts Threefry in the place of (`pcp.dialect.threefry`): numbers in [0, 1), of the
program's key, folded with the ordinal of the op in the program. What torch makes of
uniform numbers is made here too; the numbers themselves are others than torch's.

Ops that reach this table are what torch's own decompositions leave: dropout and the
attention with dropout come as `bernoulli` or `native_dropout`. What is not in it stays
an error (`torch._check_pure`).
"""

from collections.abc import Callable
from math import tau
from typing import Any

from pcp.errors import IRError
from pcp.frontends.pytorch import marks as torch_marks
from pcp.frontends.pytorch.places import here

_EXACT = 1 << 24
"""So many uniform numbers there are: a range beyond is not drawn evenly."""


def table(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Decompositions of one export, by op."""
    draw = _Draw(torch)
    aten = torch.ops.aten
    return {
        aten.dropout.default: draw.dropout,
        aten.native_dropout.default: draw.native_dropout,
        aten.rand.default: draw.rand,
        aten.rand_like.default: draw.rand_like,
        aten.uniform.default: draw.uniform,
        aten.randn.default: draw.randn,
        aten.randn_like.default: draw.randn_like,
        aten.normal_functional.default: draw.normal_like,
        aten.normal.Tensor_float: draw.normal_around,
        aten.normal.float_Tensor: draw.normal_spread,
        aten.normal.Tensor_Tensor: draw.normal,
        aten.bernoulli.default: draw.bernoulli,
        aten.bernoulli.p: draw.bernoulli_p,
        aten.bernoulli.Tensor: draw.bernoulli_of,
        aten.exponential.default: draw.exponential,
        aten.randint.default: draw.randint,
        aten.randint.low: draw.randint_low,
        aten.randint_like.default: draw.randint_like,
        aten.randint_like.low_dtype: draw.randint_like_low,
        aten.multinomial.default: draw.multinomial,
    }


class _Draw:
    """The formulas; each draw has a number of its own, so that none are merged."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._count = torch, 0

    def _numbers(self, shape: Any, dtype: Any = None) -> Any:
        """Uniform in [0, 1), also where the type has fewer bits than the numbers."""
        torch = self._torch
        self._count += 1
        drawn = torch_marks.ops().uniform(list(shape), self._count)
        dtype = dtype or torch.get_default_dtype()
        if (bits := {torch.float16: 11, torch.bfloat16: 8}.get(dtype)) is not None:
            drawn = torch.floor(drawn * 2**bits) * 2.0**-bits
        return drawn.to(dtype)

    def _normal(self, shape: Any, dtype: Any = None) -> Any:
        """Box and Muller's: two uniform numbers make one."""
        torch = self._torch
        u, v = self._numbers((2, *shape), torch.float32).unbind(0)
        drawn = torch.sqrt(-2.0 * torch.log1p(-u)) * torch.cos(tau * v)
        return drawn.to(dtype or torch.get_default_dtype())

    def dropout(self, x: Any, p: float, train: bool) -> Any:
        return self.native_dropout(x, p, train)[0]

    def native_dropout(self, x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
        torch = self._torch
        if not train or p == 0.0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        kept = self._numbers(x.shape, torch.float32) >= p
        if p == 1.0:
            return x * 0.0, kept
        return x * (kept.to(x.dtype) / (1.0 - p)), kept

    def rand(self, size: Any, *, dtype: Any = None, **_: Any) -> Any:
        return self._numbers(size, dtype)

    def rand_like(self, x: Any, *, dtype: Any = None, **_: Any) -> Any:
        return self._numbers(x.shape, dtype or x.dtype)

    def uniform(self, x: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
        return low + self._numbers(x.shape, x.dtype) * (high - low)

    def randn(self, size: Any, *, dtype: Any = None, **_: Any) -> Any:
        return self._normal(size, dtype)

    def randn_like(self, x: Any, *, dtype: Any = None, **_: Any) -> Any:
        return self._normal(x.shape, dtype or x.dtype)

    def normal_like(self, x: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
        return mean + self._normal(x.shape, x.dtype) * std

    def normal_around(self, mean: Any, std: float = 1.0, **_: Any) -> Any:
        return mean + self._normal(mean.shape, mean.dtype) * std

    def normal_spread(self, mean: float, std: Any, **_: Any) -> Any:
        return mean + self._normal(std.shape, std.dtype) * std

    def normal(self, mean: Any, std: Any, **_: Any) -> Any:
        shape = self._torch.broadcast_shapes(mean.shape, std.shape)
        return mean + self._normal(shape, mean.dtype) * std

    def bernoulli(self, p: Any, **_: Any) -> Any:
        return (self._numbers(p.shape, self._torch.float32) < p).to(p.dtype)

    def bernoulli_p(self, x: Any, p: float = 0.5, **_: Any) -> Any:
        return (self._numbers(x.shape, self._torch.float32) < p).to(x.dtype)

    def bernoulli_of(self, x: Any, p: Any, **_: Any) -> Any:
        return (self._numbers(x.shape, self._torch.float32) < p).to(x.dtype)

    def exponential(self, x: Any, rate: float = 1.0, **_: Any) -> Any:
        drawn = self._numbers(x.shape, self._torch.float32)
        return (-self._torch.log1p(-drawn) / rate).to(x.dtype)

    def randint(self, high: int, size: Any, **rest: Any) -> Any:
        return self.randint_low(0, high, size, **rest)

    def randint_low(
        self, low: int, high: int, size: Any, *, dtype: Any = None, **_: Any
    ) -> Any:
        if high - low > _EXACT:
            raise IRError(
                f"{here()}: randint over {high - low} numbers; the program's generator "
                f"draws up to {_EXACT} evenly: put two draws together"
            )
        drawn = self._numbers(size, self._torch.float32) * float(high - low)
        return low + drawn.to(self._torch.int64).to(dtype or self._torch.int64)

    def randint_like(self, x: Any, high: int, *, dtype: Any = None, **_: Any) -> Any:
        return self.randint_low(0, high, x.shape, dtype=dtype or x.dtype)

    def randint_like_low(
        self, x: Any, low: int, high: int, *, dtype: Any = None, **_: Any
    ) -> Any:
        return self.randint_low(low, high, x.shape, dtype=dtype or x.dtype)

    def multinomial(
        self, p: Any, count: int, replacement: bool = False, **_: Any
    ) -> Any:
        """Races of exponential clocks: the first of them, as in torch."""
        torch = self._torch
        if not replacement:
            clocks = -torch.log1p(-self._numbers(p.shape, torch.float32))
            return torch.topk(p / clocks.clamp(min=2.0**-25), count)[1]
        total = torch.cumsum(p.to(torch.float32), -1)
        total = total / total[..., -1:]
        drawn = self._numbers((*p.shape[:-1], count), torch.float32)
        return (drawn.unsqueeze(-1) >= total.unsqueeze(-2)).sum(-1)
