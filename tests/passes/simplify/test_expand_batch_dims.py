"""pcp-expand-batch-dims: the same numbers, whatever was merged and where it stands."""

import numpy as np
import pytest
from helpers.oracles.spmd import whole

from pcp.dialect.context import parse
from pcp.passes.simplify.expand_batch_dims import ExpandBatchDims


def _shape(sizes: list[int]) -> str:
    return "tensor<" + "".join(f"{n}x" for n in sizes) + "f32>"


def _product(random: np.random.Generator) -> tuple[str, list[list[int]]]:
    """A product whose batching dims one or both operands were merged to."""
    parts = [
        [int(n) for n in random.integers(1, 4, random.integers(1, 4))]
        for _ in range(random.integers(1, 3))
    ]
    batch = [int(np.prod(p)) for p in parts]
    free = [[int(random.integers(1, 4))], [int(random.integers(1, 4))]]
    summed = int(random.integers(1, 4))
    lines, shapes, places, merged = [], [], [], []
    for side in range(2):
        order = random.permutation(len(batch) + 2)  # batching dims, free, contracted
        sizes = [*batch, *free[side], summed]
        apart = [*parts, free[side], [summed]]
        flat = [sizes[i] for i in order]
        whole_ = [n for i in order for n in apart[i]]
        keeps = side == 1 and random.random() < 0.5
        shapes.append(flat if keeps else whole_)
        merged.append(_shape(flat))
        lines.append(
            f"  %m{side} = stablehlo.reshape %x{side} : "
            f"({_shape(shapes[-1])}) -> {_shape(flat)}"
        )
        where = [int(np.flatnonzero(order == i)[0]) for i in range(len(sizes))]
        places.append((where[: len(batch)], where[-1]))
    (lb, lc), (rb, rc) = places
    result = _shape([*batch, *_free(merged, places, 0), *_free(merged, places, 1)])
    text = f"""func.func @main(%x0: {_shape(shapes[0])}, %x1: {_shape(shapes[1])})
    -> {result} {{
{lines[0]}
{lines[1]}
  %y = stablehlo.dot_general %m0, %m1, batching_dims = {lb} x {rb},
    contracting_dims = [{lc}] x [{rc}] : ({merged[0]}, {merged[1]}) -> {result}
  return %y : {result}
}}"""
    return text, shapes


def _free(merged: list[str], places: list, side: int) -> list[int]:
    sizes = [int(n) for n in merged[side].removeprefix("tensor<").split("x")[:-1]]
    batch, contracted = places[side]
    return [n for d, n in enumerate(sizes) if d not in {*batch, contracted}]


@pytest.mark.parametrize("group", range(4))
def test_drawn_products(group: int) -> None:
    random = np.random.default_rng(group)
    changed = 0
    for _ in range(25):
        text, shapes = _product(random)
        module = parse(text)
        before = str(module)
        ExpandBatchDims().run(module)
        assert module.operation.verify()
        changed += str(module) != before
        inputs = [random.normal(size=s).astype(np.float32) for s in shapes]
        (found,), (expected,) = whole(str(module), inputs), whole(text, inputs)
        np.testing.assert_array_equal(found, expected, err_msg=text)
    assert changed > 5
