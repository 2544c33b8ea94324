"""ATen ops along dimensions, over windows and of tables: see `pytorch.formulas`."""

import math
from collections.abc import Sequence
from typing import Any

from pcp.frontends.pytorch.formula import Formula, Formulas


class Along(Formulas):
    """Extremes, norms, deviations; pools; embeddings."""

    def table(self) -> dict[Any, Formula]:
        """The formula of each op."""
        aten = self.aten
        return {
            aten._safe_softmax.default: self.safe_softmax,
            aten.embedding.default: self.embedding,
            aten.linalg_vector_norm.default: self.vector_norm,
            aten.max.dim: self.max_dim,
            aten.max_pool2d_with_indices.default: self.max_pool,
            aten.max_pool3d_with_indices.default: self.max_pool,
            aten.min.dim: self.min_dim,
            aten.norm.Scalar: self.norm,
            aten.norm.ScalarOpt_dim: self.norm,
            aten.norm.ScalarOpt_dim_dtype: self.norm,
            aten.std.correction: self.std,
            aten.std_mean.correction: self.std_mean,
            aten.var.correction: self.var,
            aten.var_mean.correction: self.var_mean,
        }

    def max_dim(self, x: Any, dim: int, keepdim: bool = False) -> Any:
        """value_selecting_reduction_backward: all goes to the element of the index."""
        return self._select(x, self.aten.argmax(x, dim, keepdim=True), dim, keepdim)

    def min_dim(self, x: Any, dim: int, keepdim: bool = False) -> Any:
        """As `max_dim`."""
        return self._select(x, self.aten.argmin(x, dim, keepdim=True), dim, keepdim)

    def _select(self, x: Any, index: Any, dim: int, keepdim: bool) -> Any:
        if x.ndim == 0:
            return x.clone(), index.reshape(())
        shape = [1] * x.ndim
        shape[dim] = x.shape[dim]
        places = self.torch.arange(x.shape[dim], device=x.device).reshape(shape)
        chosen = self.torch.where(places == index, x, 0)
        values = self.torch.sum(chosen, dim, keepdim=keepdim)
        return values, index if keepdim else self.torch.squeeze(index, dim)

    def vector_norm(
        self,
        x: Any,
        order: float = 2,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
    ) -> Any:
        """norm_backward: nothing where the norm is 0, nor for an element that is."""
        torch, kind = self.torch, x.dtype if dtype is None else dtype
        if torch.finfo(kind).bits < 32:  # torch sums these in float32
            wide = self.vector_norm(x.float(), order, dim, keepdim)
            return wide.to(kind)
        x, dims = x.to(kind), _dims(x, dim)
        if order == 0:
            return torch.sum((x != 0).to(x.dtype), dims, keepdim=keepdim)
        if order == 2:
            return self._root(torch.sum(x * x, dims, keepdim=keepdim), 0.5)
        magnitude = x * torch.sign(x)
        if math.isinf(order):
            extreme = self.aten.amax if order > 0 else self.aten.amin
            return extreme(magnitude, dims, keepdim)
        if order == 1:
            return torch.sum(magnitude, dims, keepdim=keepdim)
        total = torch.sum(self._root(magnitude, order), dims, keepdim=keepdim)
        return self._root(total, 1 / order)

    def norm(
        self, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, **kw: Any
    ) -> Any:
        """The older name of `vector_norm`."""
        return self.vector_norm(x, 2 if order is None else order, dim, keepdim, **kw)

    def _root(self, x: Any, power: float) -> Any:
        """x ** power of what is not negative; at 0 it has no slope."""
        zero = x == 0
        safe = self.torch.where(zero, 1, x)
        value = self.torch.sqrt(safe) if power == 0.5 else self.torch.pow(safe, power)
        return self.torch.where(zero, 0, value)

    def var_mean(
        self, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        """sum((x - mean(x))^2) / (n - correction), in two passes as torch has it.

        torch-mlir computes every variance, so every layer norm, in float64: twice the
        memory, and no float64 on most accelerators.
        """
        torch, dims = self.torch, _dims(x, dim)
        count = math.prod(x.shape[d] for d in dims)
        mean = torch.sum(x, dims, keepdim=True) / count
        centred = x - mean
        degrees = max(count - (1 if correction is None else correction), 0)
        variance = torch.sum(centred * centred, dims, keepdim=keepdim) / degrees
        return variance, mean if keepdim else torch.squeeze(mean, dims)

    def var(self, x: Any, dim: Any = None, **options: Any) -> Any:
        """The first of `var_mean`."""
        return self.var_mean(x, dim, **options)[0]

    def std_mean(self, x: Any, dim: Any = None, **options: Any) -> Any:
        """std_backward: nothing where the deviation is 0."""
        variance, mean = self.var_mean(x, dim, **options)
        return self._root(variance, 0.5), mean

    def std(self, x: Any, dim: Any = None, **options: Any) -> Any:
        """The first of `std_mean`."""
        return self.std_mean(x, dim, **options)[0]

    def safe_softmax(self, x: Any, dim: int, dtype: Any = None) -> Any:
        """A row of -inf gives zeros, and has no gradient."""
        torch = self.torch
        x = x if dtype is None else x.to(dtype)
        empty = torch.all(x == -math.inf, dim, keepdim=True)
        return torch.where(empty, 0, torch.softmax(torch.where(empty, 0, x), dim))

    def embedding(
        self,
        weight: Any,
        indices: Any,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        """embedding_backward: the row of the padding index is not trained."""
        if scale_grad_by_freq or padding_idx < 0:
            return NotImplemented
        rows = self.aten.embedding(weight, indices)
        padding = (indices == padding_idx).unsqueeze(-1)
        return self.torch.where(padding, self.stop(rows), rows)

    def slice_scatter(
        self,
        x: Any,
        source: Any,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Any:
        """An end inside: of one beyond, torch-mlir allocates all that lies between."""
        size = x.shape[dim]
        if end is not None and end <= size:
            return NotImplemented
        return self.aten.slice_scatter(x, source, dim, start, size, step)

    def max_pool(
        self,
        x: Any,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        """With `ceil_mode` padded behind; torch-mlir pads both sides alike."""
        if not ceil_mode:
            return NotImplemented
        axes = len(kernel)
        stride, padding = stride or kernel, [*padding] * (axes // len(padding))
        dilation = [*dilation] * (axes // len(dilation))
        stride = [*stride] * (axes // len(stride))
        behind = [
            _behind(*sizes)
            for sizes in zip(
                x.shape[-axes:], kernel, stride, padding, dilation, strict=True
            )
        ]
        if max(behind) == 0:
            pool = getattr(self.aten, f"max_pool{axes}d_with_indices")
            return pool(x, kernel, stride, padding, dilation, False)
        return self._padded_pool(x, kernel, stride, padding, dilation, behind)

    def _padded_pool(
        self, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, behind: Any
    ) -> Any:
        torch, axes = self.torch, len(kernel)
        sides = [(p, p + b) for p, b in zip(padding, behind, strict=True)]
        amounts = [amount for side in reversed(sides) for amount in side]
        wide = torch.constant_pad_nd(x, amounts, -math.inf)
        pool = getattr(self.aten, f"max_pool{axes}d_with_indices")
        values, index = pool(wide, kernel, stride, 0, dilation, False)
        place = torch.zeros_like(index)
        shapes = zip(wide.shape[-axes:], x.shape[-axes:], padding, strict=True)
        factor = math.prod(wide.shape[-axes:])
        for wide_size, size, before in shapes:  # from padded positions to those of x
            factor //= wide_size
            at = torch.div(index, factor, rounding_mode="floor")
            index = index - at * factor
            place = place * size + (at - before)
        return values, place


def _behind(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """What a window that begins inside, or in front, reaches beyond the padding."""
    reach = dilation * (kernel - 1) + 1
    steps = -(-(size + 2 * padding - reach) // stride)
    if steps * stride >= size + padding:  # it would begin behind
        steps -= 1
    return max(steps * stride + reach - size - 2 * padding, 0)


def _dims(x: Any, dim: Any) -> Sequence[int]:
    """Dimensions, counted from the front; None and none are all."""
    if isinstance(dim, int):
        dim = [dim]
    return [d % x.ndim for d in dim] if dim else list(range(x.ndim))
