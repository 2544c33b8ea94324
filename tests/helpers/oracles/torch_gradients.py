"""Gradients of PyTorch models by pcp, beside torch's own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from helpers.servers.evaluator import Evaluator
from torch import Tensor, nn

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.frontends.torch import from_torch, weights_of

GRADIENT = "pcp-grad{func=main name=derived},pcp-inline-composites"
CLEAN = "cse,symbol-dce,func.func(chlo-legalize-to-stablehlo)"


class Weighted(nn.Module):
    """Functions, each of its own parameter, summed with weights that differ.

    The results are the loss, then the values.
    """

    def __init__(self, functions: Sequence[Any], values: Sequence[Tensor]) -> None:
        super().__init__()
        self.functions = list(functions)
        self.values = nn.ParameterList(v.clone() for v in values)

    def forward(self) -> tuple[Tensor, ...]:
        results = [f(x) for f, x in zip(self.functions, self.values, strict=True)]
        terms = [(y * _weights(y)).sum() for y in results]
        return torch.stack(terms).sum(), *results


def _weights(y: Tensor) -> Tensor:
    count = max(y.numel(), 1)
    return torch.arange(1.0, count + 1).reshape(y.shape)


def theirs(model: nn.Module, *inputs: Tensor) -> list[np.ndarray]:
    """torch's gradients of the first result, zeros where it has none."""
    result = model(*inputs)
    loss = result[0] if isinstance(result, tuple) else result
    given = list(model.parameters())
    found = torch.autograd.grad(loss, given, allow_unused=True)
    return [
        np.zeros(p.shape, np.float32) if g is None else g.numpy(force=True)
        for p, g in zip(given, found, strict=True)
    ]


def derived(module: ir.Module, passes: str = GRADIENT) -> str:
    """What `passes` name `@derived`, alone, as the `@main` of a text."""
    pipeline(f"builtin.module({passes},{CLEAN})").run(module)
    for view in list(module.body.operations):
        name = ir.StringAttr(view.operation.attributes["sym_name"]).value
        if name != "derived":
            view.operation.erase()
    return str(module).replace("@derived(", "@main(")


def ours(
    interpreter: Evaluator,
    model: nn.Module,
    *inputs: Tensor,
    passes: str = GRADIENT,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """pcp's results, and its gradients of the first, by the reference interpreter."""
    text = derived(from_torch(model, *inputs), passes)
    given = [*weights_of(model).values(), *(x.numpy() for x in inputs)]
    found = interpreter.run(text, given)
    count = len(list(model.parameters()))
    return found[:-count], found[-count:]
