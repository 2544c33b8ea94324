"""pcp-overlap-collectives changes no bit, and puts work behind what travels."""

import pytest
from helpers.models import sharded
from helpers.oracles.same_bits import different, same_gradients
from helpers.oracles.spmd import PLAN
from helpers.sampled import sampled

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.collectives.overlap_collectives import CHEAP, OverlapCollectives

OVERLAPPED = PLAN.removesuffix(")") + (
    ",pcp-bucket-collectives{{bytes={}}},pcp-overlap-collectives{{inflight={}}},"
    "pcp-verify-plan)"
)


def _passes(seed: int) -> str:
    return OVERLAPPED.format(1, 1 + seed % 4)


@sampled(
    "model, plan, size, inflight",
    [
        ("mlp", "dp3", 1, 2),
        ("block", "dp2-tp2", 2000, 4),
        pytest.param("gpt", "zero3-tp2", 1 << 20, 4, marks=pytest.mark.slow),
        pytest.param("llama", "dp2-tp2", 5000, 1, marks=pytest.mark.slow),
        pytest.param("cnn", "dp3", 1, 3, marks=pytest.mark.slow),
    ],
    1,
)
def test_no_bit_of_a_gradient_changes(model, plan, size, inflight, elsewhere) -> None:
    passes = OVERLAPPED.format(size, inflight)
    assert elsewhere.submit(same_gradients, model, plan, passes).result(200)


def test_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(different, 7000, 20, _passes).result(200) == []


@pytest.mark.slow
def test_many_random_programs_are_equal(elsewhere) -> None:
    assert elsewhere.submit(different, 8000, 300, _passes).result(900) == []


def _device_blocks(module: ir.Module) -> list[list[ir.Operation]]:
    homes = [v.operation for v in module.body.operations]
    homes = [h for h in homes if h.name == "builtin.module"]
    mains = [h.regions[0].blocks[0].operations[0].operation for h in homes]
    return [[v.operation for v in m.regions[0].blocks[0].operations] for m in mains]


@pytest.mark.parametrize("inflight", [1, 2, 4])
def test_gradients_travel_while_the_next_is_computed(inflight: int) -> None:
    """Work between each start and its wait, and never more than allowed under way."""
    axes, cut = sharded.PLANS["dp3"]
    module = parse(sharded.annotate("mlp", axes, cut))
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
