"""Members that round differently, in the lockstep executor, which does not.

Every float that a device computes is scaled by factors of its own, next to one: a crude
model of a compiler that fuses, reorders and approximates. What this leaves alone is
listed here by hand, apart from the list in `pcp.passes.sharding.rounding`.
"""

from typing import Any

import numpy as np
from helpers.oracles import staged_training
from helpers.oracles.staged_training import Tensors
from helpers.present import present

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import device_modules, functions
from pcp.passes.core.walk import CONTROL_FLOW, block_of, walk

#: What gives some of the bits that it is given.
MOVES = frozenset(
    "constant iota reshape transpose broadcast_in_dim slice dynamic_slice "
    "dynamic_update_slice concatenate pad reverse gather select maximum minimum "
    "negate abs sign optimization_barrier return".split()
)


def perturb(module: ir.Module, devices: list[str], amount: float, seed: int = 0) -> int:
    """Make these devices round otherwise; how many values it was."""
    random = np.random.default_rng(seed)
    count = 0
    with module.context:
        homes = device_modules(module)
        for device in devices:
            for function in functions(homes[device]):
                for op in list(walk(block_of(function, 0))):
                    count += _perturb(op, amount, random)
    return count


def _perturb(op: ir.Operation, amount: float, random: np.random.Generator) -> int:
    dialect, _, name = op.name.partition(".")
    if dialect != "stablehlo" or name in MOVES or op.name in CONTROL_FLOW:
        return 0
    count = 0
    for value in list(op.results):
        if not isinstance(hlo.element_type(value), ir.F32Type):
            continue
        signs = random.choice([-amount, amount], hlo.shape_of(value))
        factors = np.asarray(1 + signs, np.float32)
        with ir.InsertionPoint(op), op.location:
            attributes = {"value": ir.DenseElementsAttr.get(factors)}
            factor = ir.Operation.create(
                "stablehlo.constant", results=[value.type], attributes=attributes
            )
            new = hlo.multiply(value, factor.results[0])
        new.owner.operation.move_after(op)
        value.replace_all_uses_except(new, new.owner.operation)
        count += 1
    return count


def trained(
    model: str, steps: int, unlike: list[int], amount: float, **options: Any
) -> tuple[dict[str, Tensors], dict[str, Tensors], int]:
    """(what steps leave on perturbed members, on the whole program, values perturbed).

    `ValueError` where two members hold other bits of one part.
    """
    program = staged_training.compiled(model, **options)
    devices = [present(program.mesh).devices[k] for k in unlike]
    count = perturb(program.module, devices, amount)
    one, other = staged_training.both(program, model, steps)
    return one, other, count
