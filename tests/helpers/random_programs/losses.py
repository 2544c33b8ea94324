"""Random losses of a batch, in small integers, to be run in stages and microbatches.

Most ops treat examples one by one, and many use sums over the batch of data alone;
some join or move examples, which microbatches cannot. Gradients of integers are exact.
"""

import random
from collections.abc import Sequence

import numpy as np
from helpers.oracles.staged_gradients import Loss, Tensors
from helpers.random_programs.loss_ops import CLASSES, OPS, WIDE, Losses, linear, scalar

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import PassError
from pcp.passes.core.functions import NAME, ROLE
from pcp.passes.core.rewriting import sweep

KINDS = ("gpipe", "1f1b", "zb-h1")
SPLIT = "pcp-split-batch{weights=2,1,1},"


def random_loss(seed: int, length: int = 9) -> Loss:
    """A loss of about `length` ops, a mesh, and how it is staged."""
    rng = random.Random(seed)
    count = rng.choice((1, 2, 2, 3, 4, 4))
    axes, first = _axes(rng), ""
    batch = {1: 4, 2: 8, 3: 12, 4: 8}[count]
    if "dp" in axes and count > 1 and rng.random() < 0.2:
        axes["dp"], batch, first = 3, 4 * count, SPLIT
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = ir.Operation.create("func.func", regions=1)
        p = Losses(rng, batch, main.regions[0].blocks.append(arg_locs=[]))
        with ir.InsertionPoint(p.block):
            _grow(p, length)
        sweep(main)
        said = [_port(p, i, axes) for i in range(len(p.arguments))]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(said)
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        types = [value.type for value, _ in p.arguments]
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(types, [hlo.tensor((), p.f32)])
        )
        text, inputs = str(module), _inputs(p, seed)
    options = f"microbatches={count} tied={rng.choice(('true', 'true', 'false'))}"
    if rng.random() < 0.2:
        options += " share-loss=true"
    return Loss(text, inputs, axes, options, rng.choice(KINDS), first)


def _axes(rng: random.Random) -> dict[str, int]:
    """Two to four stages, and perhaps other axes in front of them or behind."""
    found = [("pp", rng.choice((2, 2, 3, 4)))]
    for axis in rng.choice(((), (), ("dp",), ("tp",), ("dp", "tp"))):
        found.insert(rng.randrange(len(found) + 1), (axis, 2))
    return dict(found)


def _grow(p: Losses, length: int) -> None:
    """Data, then ops, then one number."""
    if p.rng.random() < 0.1:
        p.data.append(p.argument((WIDE, WIDE), "data"))  # microbatches cut the first
    x = p.argument((p.batch, WIDE), "data")
    p.data.append(x)
    p.labels = [p.argument((p.batch,), "data", p.i32)]
    for shape in ((p.batch, 2, WIDE), (WIDE, WIDE), (), (p.batch, p.batch)):
        if p.rng.random() < 0.25:
            p.data.append(p.argument(shape, "data"))
    p.hidden.append(x)
    while len(p.hidden) < length:
        made = (p.rng.choice(OPS) if p.parameters() else linear)(p)
        if made is not None and hlo.size(made) <= 600 and len(hlo.shape_of(made)) < 6:
            p.hidden.append(made)
    p.hidden.pop(0)
    loss = scalar(p, p.hidden[-1])
    if p.rng.random() < 0.3:
        loss = hlo.add(loss, scalar(p, p.rng.choice(p.hidden[-4:])))
    if p.rng.random() < 0.25:
        w = p.rng.choice(p.parameters())
        loss = hlo.add(loss, hlo.sum_all(hlo.multiply(w, w)))
    ir.Operation.create("func.return", operands=[loss])


def _port(p: Losses, place: int, axes: dict[str, int]) -> ir.Attribute:
    """Name and role of an argument, and how it is cut: data along dp."""
    value, role = p.arguments[place]
    shape, cut = hlo.shape_of(value), None
    even = [d for d, n in enumerate(shape) if n % 2 == 0]
    if role == "data" and "dp" in axes and p.at.get(value) == 0:
        cut = 0, "dp"
    elif role == "param" and "tp" in axes and even and p.rng.random() < 0.6:
        cut = p.rng.choice(even), "tp"
    said = f'{NAME} = "a{place}", {ROLE} = "{role}"'
    if cut is not None:
        said += f", pcp.sharding = {_sharding(len(shape), *cut)}"
    return ir.Attribute.parse(f"{{{said}}}")


def _sharding(rank: int, dim: int, axis: str) -> str:
    dims: Sequence[str] = [f'["{axis}"]' if d == dim else "[]" for d in range(rank)]
    return f"#pcp.sharding<@m, [{', '.join(dims)}], [], []>"


def _inputs(p: Losses, seed: int) -> Tensors:
    """Small integers; some labels are below all classes."""
    data = np.random.default_rng(seed)
    found: Tensors = {}
    for place, (value, role) in enumerate(p.arguments):
        shape = hlo.shape_of(value)
        if value in p.labels:
            numbers = data.integers(-1, CLASSES, shape).astype(np.int32)
        else:
            numbers = data.integers(-2, 3, shape).astype(np.float32)
        found[role, f"a{place}"] = numbers
    return found


def outcome(seed: int) -> str:
    """Why it cannot be staged; nothing where stages equal the whole."""
    try:
        random_loss(seed).check()
    except PassError as error:
        return str(error)
    return ""
