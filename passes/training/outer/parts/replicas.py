"""What algorithms share whose workers' parameters differ by design.

Each worker has parameters of its own, a replica, so there is nothing in them for a
commit to compare. What all agree on is how many rounds there were.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.outer.rule import Slot, Tensors


def counter(_: object = None) -> ir.Type:
    """The type of a count: a rank-0 i32."""
    return hlo.tensor((), ir.IntegerType.get_signless(32))


ROUNDS = Slot("rounds", whole=counter)
STEPS = Slot("steps", whole=counter)
"""Inner steps so far, for algorithms that count them."""


def counted(state: Tensors) -> Tensors:
    """The rounds so far, and this one."""
    (rounds,) = state[ROUNDS.name]
    return {ROUNDS.name: [hlo.add(rounds, hlo.constant_like(rounds, 1))]}
