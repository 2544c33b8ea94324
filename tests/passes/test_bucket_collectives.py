"""pcp-bucket-collectives changes no bit of a gradient."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers import random_spmd, spmd_models
from helpers.random_spmd import PLAN, partitioned, random_program

BUCKETED = (
    PLAN.removesuffix(")") + ",pcp-bucket-collectives{{bytes={}}},pcp-verify-plan)"
)


def _same(model: str, plan: str, size: int) -> bool:
    axes, cut = spmd_models.PLANS[plan]
    arguments = spmd_models.models()[model].arguments
    text = spmd_models.annotate(model, axes, cut)
    plain = partitioned(text, arguments)
    joined = partitioned(text, arguments, BUCKETED.format(size))
    return all(a.tobytes() == b.tobytes() for a, b in zip(plain, joined, strict=True))


def _random(first: int, count: int) -> list[int]:
    """Seeds whose bucketed program differs from the whole one."""
    different = []
    for seed in range(first, first + count):
        text, inputs = random_program(seed, 12)
        plain = random_spmd.whole(text, inputs)
        joined = partitioned(text, inputs, BUCKETED.format(4096))
        if not all((a == b).all() for a, b in zip(plain, joined, strict=True)):
            different.append(seed)
    return different


@pytest.fixture(scope="module")
def elsewhere():
    """The interpreter ends the process that it fails in."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "plan", "size"),
    [
        ("mlp", "dp3", 1 << 20),
        ("block", "dp2-tp2", 2000),
        pytest.param("gpt", "zero3-tp2", 1 << 20, marks=pytest.mark.slow),
        pytest.param("llama", "dp2-tp2", 5000, marks=pytest.mark.slow),
    ],
)
def test_no_bit_of_a_gradient_changes(model, plan, size, elsewhere) -> None:
    assert elsewhere.submit(_same, model, plan, size).result(200)


def test_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(_random, 5000, 20).result(200) == []


@pytest.mark.slow
def test_many_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(_random, 6000, 300).result(900) == []
