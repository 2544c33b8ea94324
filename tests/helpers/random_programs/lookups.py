"""Random gathers and scatters, some components of whose indices count places."""

import random
from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.dialect.hlo_indexing import Windows, gather, scatter

#: Types of indices by the numpy type that holds them.
INDICES = {"i8": np.int8, "ui8": np.uint8, "i32": np.int32, "ui32": np.uint32}
LENGTHS = (2, 3, 4)


@dataclass(frozen=True)
class _Lookup:
    """What is drawn: the windows, and the shapes of operand, indices and windows."""

    windows: Windows
    operand: list[int]
    indices: list[int]
    sizes: list[int]


def random_lookup(seed: int) -> tuple[str, list[np.ndarray]]:
    """`@main` with one gather or scatter, and what it is given.

    Labels may lie outside of the operand; where a scatter's do not, each place may be
    met by several updates.
    """
    rng = random.Random(seed)
    data = np.random.default_rng(seed)
    name = rng.choice(sorted(INDICES))
    with make_context(), ir.Location.unknown():
        element, f32 = ir.Type.parse(name), ir.F32Type.get()
        drawn = _draw(rng)
        updates = drawn.windows.result_shape(drawn.indices, drawn.sizes)
        labels = _labels(drawn)
        types = [
            hlo.tensor(drawn.operand, f32),
            hlo.tensor(labels, element),
            hlo.tensor(updates, f32),
        ]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = ir.Operation.create("func.func", regions=1)
        block = main.regions[0].blocks.append(
            *types, arg_locs=[ir.Location.unknown()] * len(types)
        )
        with ir.InsertionPoint(block):
            x, given, update = block.arguments
            i = _indices(rng, drawn, given)
            if rng.random() < 0.5:
                y = gather(x, i, drawn.windows, drawn.sizes)
            else:
                y = scatter(x, i, update, drawn.windows, hlo.add)
            ir.Operation.create("func.return", operands=[y])
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(types, [y.type])
        )
        text = str(module)
    numbers = data.integers(0 if name.startswith("u") else -3, 6, labels)
    return text, [
        data.integers(-9, 10, drawn.operand).astype(np.float32),
        numbers.astype(INDICES[name]),
        data.integers(-9, 10, updates).astype(np.float32),
    ]


def _draw(rng: random.Random) -> _Lookup:
    """Some dimensions of the operand are looked up, in any order, some are paired."""
    operand = [rng.choice(LENGTHS) for _ in range(rng.randrange(2, 5))]
    dims = rng.sample(range(len(operand)), len(operand))
    batch = [rng.choice(LENGTHS) for _ in range(rng.randrange(1, 4))]
    pairs: list[tuple[int, int]] = []
    if len(dims) > 2 and rng.random() < 0.3:
        place = rng.randrange(len(batch))
        batch[place] = operand[dims[-1]]
        pairs = [(dims.pop(), place)]
    mapped = dims[: rng.randrange(1, len(dims) + 1)]
    collapsed = [d for d in mapped if rng.random() < 0.8]
    left_out = {*collapsed, *(d for d, _ in pairs)}
    sizes = [
        1 if d in left_out else rng.randrange(1, n + 1) for d, n in enumerate(operand)
    ]
    # As many places as the operand has rows, so that some components count them.
    for d in collapsed:
        if rng.random() < 0.7:
            place = rng.randrange(len(batch))
            if place not in [p for _, p in pairs]:
                batch[place] = operand[d]
    vector = rng.randrange(len(batch) + 1)
    indices = [*batch[:vector], len(mapped), *batch[vector:]]
    if len(mapped) == 1 and rng.random() < 0.5:  # the vector is no dimension
        vector, indices = len(batch), batch
    inside = len(operand) - len(left_out)
    offset = sorted(rng.sample(range(inside + len(batch)), inside))
    windows = Windows(
        tuple(offset),
        tuple(sorted(collapsed)),
        tuple(d for d, _ in pairs),
        tuple(p + (p >= vector) for _, p in pairs),
        tuple(mapped),
        vector,
    )
    return _Lookup(windows, operand, indices, sizes)


def _labels(drawn: _Lookup) -> list[int]:
    """The shape of one component."""
    vector = drawn.windows.index_vector
    return [1 if d == vector else n for d, n in enumerate(drawn.indices)]


def _indices(rng: random.Random, drawn: _Lookup, given: ir.Value) -> ir.Value:
    """Components one behind the other: counted ones, the labels, or their sums."""
    vector = drawn.windows.index_vector
    dims = [d for d in range(len(drawn.indices)) if d != vector]
    parts = []
    for d in drawn.windows.index_map:
        fit = [e for e in dims if drawn.indices[e] == drawn.operand[d]]
        along = rng.choice(fit or dims)
        counted = hlo.iota(given.type, along)
        ways = [counted, given, counted if fit else given]
        if rng.random() < 0.2:
            ways = [hlo.add(counted, counted), hlo.reverse(counted, [along])]
        parts.append(rng.choice(ways))
    return hlo.concatenate(parts, vector) if len(parts) > 1 else parts[0]
