"""Collectives: ⟨u, f(v)⟩ = ⟨f*(u), v⟩ summed over the members, on the runtime."""

from typing import Any

import numpy as np
import pytest
from helpers.cases.collectives import ANNOTATED, CASES, F, program
from helpers.models.expanded_training import bundle, in_parallel, run_passes

from pcp.errors import MissingRule

#: Compiled by default: one of each kind of rule; the rest by `make test-full`.
DEFAULT = {"all_reduce_sum", "all_reduce_max", "reduce_scatter_mean", "broadcast"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in DEFAULT else pytest.mark.slow) for n in CASES],
)
def test_transpose(name: str) -> None:
    text, shape = CASES[name]
    code = bundle(run_passes(text, "pcp-vjp,pcp-jvp,pcp-lower-to-runtime"))

    def work(loaded: Any, rank: int) -> tuple[float, float]:
        rng = np.random.default_rng(rank)
        x, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        y, pushed = loaded["main_jvp"](x, v)
        u = rng.standard_normal(np.shape(y)).astype(np.float32)
        _, pulled = loaded["main_vjp"](x, u)
        ahead, behind = (np.asarray(loaded["main"](x + h * v)) for h in (1e-3, -1e-3))
        slope = (ahead - behind) / 2e-3
        np.testing.assert_allclose(np.asarray(pushed), slope, atol=2e-2)
        return float((u * pushed).sum()), float((pulled * v).sum())

    pairs = in_parallel(code, 2, work)
    left, right = (sum(pair[i] for pair in pairs) for i in (0, 1))
    assert left == pytest.approx(right, rel=1e-4)


def test_a_product_is_refused() -> None:
    with pytest.raises(MissingRule, match=r'pcp.all_reduce: kind "prod"'):
        run_passes(program("all_reduce", 'kind = "prod"', F, F), "pcp-vjp")


def test_a_sharding_holds_for_the_cotangent() -> None:
    module = run_passes(ANNOTATED, "pcp-vjp")
    *_, derived = module.body.operations
    *_, before, end = derived.regions[0].blocks[0].operations
    assert before.operation.name == "pcp.constraint"
    assert before.operands[0] == derived.regions[0].blocks[0].arguments[1]
    assert end.operands[1] == before.operation.results[0]
