"""Whether a pass behind the partition changes a bit of what a program gives."""

from collections.abc import Callable

from helpers.models import sharded
from helpers.oracles.spmd import partitioned, whole
from helpers.random_programs.spmd import random_program


def same_gradients(model: str, plan: str, passes: str) -> bool:
    """A model's gradients, by a pipeline and by the partition alone."""
    axes, cut = sharded.PLANS[plan]
    arguments = sharded.models()[model].arguments
    text = sharded.annotate(model, axes, cut)
    plain, found = partitioned(text, arguments), partitioned(text, arguments, passes)
    return all(a.tobytes() == b.tobytes() for a, b in zip(plain, found, strict=True))


def different(first: int, count: int, passes: Callable[[int], str]) -> list[int]:
    """Seeds whose program differs from the whole one under `passes(seed)`."""
    found = []
    for seed in range(first, first + count):
        text, inputs = random_program(seed, 12)
        plain = whole(text, inputs)
        joined = partitioned(text, inputs, passes(seed))
        if not all((a == b).all() for a, b in zip(plain, joined, strict=True)):
            found.append(seed)
    return found
