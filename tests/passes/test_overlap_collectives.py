"""pcp-overlap-collectives changes no bit, and puts work behind what travels."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers import random_spmd, spmd_models
from helpers.random_spmd import PLAN, partitioned, random_program

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.overlap_collectives import CHEAP, OverlapCollectives

OVERLAPPED = PLAN.removesuffix(")") + (
    ",pcp-bucket-collectives{{bytes={}}},pcp-overlap-collectives{{inflight={}}},"
    "pcp-verify-plan)"
)


def _same(model: str, plan: str, size: int, inflight: int) -> bool:
    axes, cut = spmd_models.PLANS[plan]
    arguments = spmd_models.models()[model].arguments
    text = spmd_models.annotate(model, axes, cut)
    plain = partitioned(text, arguments)
    overlapped = partitioned(text, arguments, OVERLAPPED.format(size, inflight))
    return all(
        a.tobytes() == b.tobytes() for a, b in zip(plain, overlapped, strict=True)
    )


def _random(first: int, count: int) -> list[int]:
    """Seeds whose overlapped program differs from the whole one."""
    different = []
    for seed in range(first, first + count):
        text, inputs = random_program(seed, 12)
        plain = random_spmd.whole(text, inputs)
        passes = OVERLAPPED.format(1, 1 + seed % 4)
        overlapped = partitioned(text, inputs, passes)
        if not all((a == b).all() for a, b in zip(plain, overlapped, strict=True)):
            different.append(seed)
    return different


@pytest.fixture(scope="module")
def elsewhere():
    """The interpreter ends the process that it fails in."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "plan", "size", "inflight"),
    [
        ("mlp", "dp3", 1, 2),
        ("block", "dp2-tp2", 2000, 4),
        pytest.param("gpt", "zero3-tp2", 1 << 20, 4, marks=pytest.mark.slow),
        pytest.param("llama", "dp2-tp2", 5000, 1, marks=pytest.mark.slow),
        pytest.param("cnn", "dp3", 1, 3, marks=pytest.mark.slow),
    ],
)
def test_no_bit_of_a_gradient_changes(model, plan, size, inflight, elsewhere) -> None:
    assert elsewhere.submit(_same, model, plan, size, inflight).result(200)


def test_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(_random, 7000, 20).result(200) == []


@pytest.mark.slow
def test_many_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(_random, 8000, 300).result(900) == []


def _device_blocks(module: ir.Module) -> list[list[ir.Operation]]:
    homes = [v.operation for v in module.body.operations]
    homes = [h for h in homes if h.name == "builtin.module"]
    mains = [h.regions[0].blocks[0].operations[0].operation for h in homes]
    return [[v.operation for v in m.regions[0].blocks[0].operations] for m in mains]


@pytest.mark.parametrize("inflight", [1, 2, 4])
def test_gradients_travel_while_the_next_is_computed(inflight: int) -> None:
    """Work between each start and its wait, and never more than allowed under way."""
    axes, cut = spmd_models.PLANS["dp3"]
    module = parse(spmd_models.annotate("mlp", axes, cut))
    pipeline(OVERLAPPED.format(1, inflight)).run(module)
    for ops in _device_blocks(module):
        names = [op.name for op in ops]
        assert "pcp.start" in names
        places = {op.results[0]: i for i, op in enumerate(ops) if op.results}
        under_way = most = 0
        for i, op in enumerate(ops):
            if op.name == "pcp.start":
                under_way += 1
                most = max(most, under_way)
            elif op.name == "pcp.wait":
                under_way -= 1
                hidden = set(names[places[op.operands[0]] + 1 : i])
                assert hidden - CHEAP - {"pcp.wait"}
        assert under_way == 0
        assert most <= inflight


def test_nothing_under_way_is_nothing() -> None:
    with pytest.raises(PassError, match="inflight=0"):
        OverlapCollectives(inflight=0).run(parse("func.func @f() { return }"))
