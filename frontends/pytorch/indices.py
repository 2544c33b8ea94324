"""Indices of tensors that count from the end: `x[i]` with an i below 0.

PyTorch adds the size of the dimension to them; torch-mlir's lowering takes them as they
are, and they would be clamped to the first element.
"""

from collections.abc import Iterator
from typing import Any


def count_from_front(torch: Any, program: Any) -> None:
    """Let every index of a traced program count from the front, before it is lowered.

    Those that are counted there, by `arange`, stay as they are.
    """
    aten = torch.ops.aten
    for module in program.graph_module.modules():
        if not hasattr(module, "graph"):
            continue
        for op in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            for node in module.graph.find_nodes(op="call_function", target=op):
                x, indices, *rest = node.args
                sizes = _sizes(torch, x, indices)
                counted = [_counted(torch, node, i, n) for i, n in sizes]
                node.args = (x, counted, *rest)
        for node in module.graph.find_nodes(
            op="call_function", target=aten.take.default
        ):
            x, index = node.args
            size = x.meta["val"].numel()
            node.args = (x, _counted(torch, node, index, size))
        module.recompile()


def _sizes(torch: Any, x: Any, indices: Any) -> Iterator[tuple[Any, int]]:
    """Each index with the size of its dimension; a mask stands for several of them."""
    dim, shape = 0, x.meta["val"].shape
    for index in indices:
        value = None if index is None else index.meta["val"]
        is_mask = value is not None and value.dtype in (torch.bool, torch.uint8)
        yield index, 0 if is_mask or value is None else shape[dim]
        dim += value.ndim if is_mask else 1


def _counted(torch: Any, node: Any, index: Any, size: int) -> Any:
    aten = torch.ops.aten
    if index is None or not size or index.target in (aten.arange.default,):
        return index
    graph = node.graph

    def call(op: Any, *arguments: Any) -> Any:
        with graph.inserting_before(node):
            made = graph.call_function(op, arguments)
        made.meta = {k: v for k, v in node.meta.items() if k != "val"}
        values = [a.meta["val"] if hasattr(a, "meta") else a for a in arguments]
        made.meta["val"] = op(*values)
        return made

    below = call(aten.lt.Scalar, index, 0)
    return call(aten.where.self, below, call(aten.add.Scalar, index, size), index)
