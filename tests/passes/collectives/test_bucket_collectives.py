"""pcp-bucket-collectives changes no bit of a gradient."""

import pytest
from helpers.oracles.same_bits import different, same_gradients
from helpers.oracles.spmd import PLAN
from helpers.sampled import sampled

BUCKETED = (
    PLAN.removesuffix(")") + ",pcp-bucket-collectives{{bytes={}}},pcp-verify-plan)"
)


def _passes(seed: int) -> str:
    """Reductions and shares in small buckets by turns."""
    return BUCKETED.format(4096 if seed % 2 else 64 * 4096)


@sampled(
    "model, plan, size",
    [
        ("mlp", "dp3", 1 << 20),
        pytest.param("llama", "zero3", 1 << 22, marks=pytest.mark.slow),
        ("block", "dp2-tp2", 2000),
        pytest.param("gpt", "zero3-tp2", 1 << 20, marks=pytest.mark.slow),
        pytest.param("llama", "dp2-tp2", 5000, marks=pytest.mark.slow),
    ],
    1,
)
def test_no_bit_of_a_gradient_changes(model, plan, size, elsewhere) -> None:
    passes = BUCKETED.format(size)
    assert elsewhere.submit(same_gradients, model, plan, passes).result(200)


def test_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(different, 5000, 20, _passes).result(200) == []


@pytest.mark.slow
def test_many_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(different, 6000, 300, _passes).result(900) == []
