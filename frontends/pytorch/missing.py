"""ATen ops that torch-mlir lacks, written with those that it has.

Other than `pytorch.formulas` these have the value alone in mind: none has a derivative
of its own that its formula would miss.
"""

from collections.abc import Iterator
from typing import Any

from pcp.frontends.pytorch.formula import Formula, Formulas


class Missing(Formulas):
    """Histograms, and products of rows by groups."""

    def table(self) -> dict[Any, Formula]:
        """The formula of each op."""
        aten, others = self.aten, self.torch.ops
        found: dict[Any, Formula] = {
            aten._grouped_mm.default: self.grouped_mm,
            aten.histc.default: self.histc,
        }
        if hasattr(others.transformers, "grouped_mm_fallback"):  # where it is imported
            found[others.transformers.grouped_mm_fallback.default] = self.grouped_mm
        return found

    def made(self) -> dict[Any, Formula]:
        """Of ops that make a tensor whose values nobody has said: zeros.

        torch-mlir leaves a `tensor.empty` of them, which is no StableHLO.
        """
        aten = self.aten
        return {
            aten.empty.memory_format: self.empty,
            aten.empty_like.default: self.empty_like,
        }

    def empty(self, size: Any, **options: Any) -> Any:
        """Zeros of a shape."""
        options.pop("memory_format", None)
        return self.torch.full(size, 0, **_typed(self.torch, options))

    def empty_like(self, x: Any, **options: Any) -> Any:
        """Zeros of the shape of another."""
        options = {"dtype": x.dtype, "device": x.device} | _given(options)
        return self.empty(x.shape, **options)

    def histc(self, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
        """How many elements fall into each of `bins` equal parts of [min, max].

        The last part has both its ends; what is outside, or NaN, counts nowhere.
        """
        torch, x = self.torch, x.reshape(-1)
        low, high = torch.full_like(x[:1], min), torch.full_like(x[:1], max)
        if min == max:  # of the elements themselves
            low, high = torch.amin(x, 0, True), torch.amax(x, 0, True)
            alone = (low == high).to(x.dtype)
            low, high = low - alone, high + alone
        part = torch.floor((x - low) * bins / (high - low))
        part = torch.where(x == high, bins - 1, part)
        numbers = torch.arange(bins, device=x.device)
        inside = (x >= low) & (x <= high)
        found = (part.unsqueeze(1) == numbers) & inside.unsqueeze(1)
        return torch.sum(found.to(x.dtype), 0)

    def grouped_mm(
        self,
        x: Any,
        weights: Any,
        offs: Any = None,
        bias: Any = None,
        dtype: Any = None,
    ) -> Any:
        """Row i of `x` [n, k] by the matrix of its group, of `weights` [g, k, m].

        `offs` [g] has the end of each group; rows behind the last give zeros. Every row
        meets every matrix, and a mask keeps one: g times the products, no scatter.
        """
        torch = self.torch
        if x.ndim != 2 or weights.ndim != 3 or bias is not None or offs is None:
            return NotImplemented
        rows = torch.arange(x.shape[0], device=x.device).unsqueeze(0)
        ends = offs.unsqueeze(1)
        starts = torch.constant_pad_nd(offs[:-1], [1, 0], 0).unsqueeze(1)
        mine = ((rows >= starts) & (rows < ends)).unsqueeze(2)
        products = torch.matmul(x.unsqueeze(0), weights)
        chosen = torch.sum(torch.where(mine, products, 0), 0)
        return chosen if dtype is None else chosen.to(dtype)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if v is not None}


def _typed(torch: Any, options: dict[str, Any]) -> dict[str, Any]:
    """With a dtype: `full` would take that of its integer."""
    return {"dtype": torch.get_default_dtype()} | _given(options)


def keep_strides(torch: Any, program: Any) -> None:
    """Values of attention keep the strides that they had at the trace.

    Their decomposition has other strides than the kernel that was traced, and a `view`
    behind it, which was one without a copy, would fail.
    """
    attention = torch.ops.aten.scaled_dot_product_attention.default
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            for node in module.graph.find_nodes(op="call_function", target=attention):
                _restride(torch, node)
            module.recompile()


def _restride(torch: Any, node: Any) -> None:
    value = node.meta["val"]
    order = sorted(range(value.ndim), key=lambda i: (-value.stride(i), i))
    inverse = sorted(range(value.ndim), key=order.__getitem__)
    users = list(node.users)
    last = node
    for made in _calls(torch, node, order, inverse):
        last = made
    for user in users:
        user.replace_input_with(node, last)


def _calls(
    torch: Any, node: Any, order: list[int], inverse: list[int]
) -> Iterator[Any]:
    aten = torch.ops.aten
    steps = [
        (aten.permute, (order,)),
        (aten.contiguous, ()),
        (aten.permute, (inverse,)),
    ]
    for op, arguments in steps:
        with node.graph.inserting_after(node):
            made = node.graph.call_function(op.default, (node, *arguments))
        made.meta = {k: v for k, v in node.meta.items() if k != "val"}
        made.meta["val"] = op(node.meta["val"], *arguments)
        yield made
        node = made
