"""pcp-split-batch: sizes by rate and memory; uneven shares train alike."""

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles.spmd import PLAN, whole
from helpers.sampled import sampled
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.compiler import lockstep
from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.layout import shard
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings
from pcp.passes.sharding.split_batch import shares


@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
@settings(max_examples=60, derandomize=True)
def test_no_other_sizes_finish_sooner(batch: int, rates: list[int]) -> None:
    sizes = shares(batch, [float(r) for r in rates], [None] * len(rates))
    assert sum(sizes) == batch
    best = min(
        max(n / r for n, r in zip(other, rates, strict=True))
        for other in _compositions(batch, len(rates))
    )
    assert max(n / r for n, r in zip(sizes, rates, strict=True)) <= best + 1e-12


def _compositions(total: int, parts: int):
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 999), min_size=1, max_size=3),
)
@settings(max_examples=60, derandomize=True)
def test_with_one_for_each_no_other_sizes_finish_sooner(
    batch: int, rates: list[int]
) -> None:
    sizes = shares(batch, [float(r) for r in rates], [None] * len(rates), least=1)
    assert sum(sizes) == batch
    least = min(1, batch // len(rates))
    assert min(sizes) >= least
    best = min(
        max(n / r for n, r in zip(other, rates, strict=True))
        for other in _compositions(batch, len(rates))
        if min(other) >= least
    )
    assert max(n / r for n, r in zip(sizes, rates, strict=True)) <= best + 1e-12


def test_memory_limits_a_share() -> None:
    assert shares(8, [4.0, 1.0], [3, None]) == [3, 5]
    with pytest.raises(ValueError, match="memory for 5 of 8 samples"):
        shares(8, [1.0, 1.0], [3, 2])


def _uneven(name: str) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """(results of each of three members that share 5/2/1, those of the whole)."""
    arguments = sharded.models()[name].arguments
    text = sharded.annotate(name, {"dp": 3}, sharded.dp)
    module = parse(text)
    pipeline("builtin.module(pcp-split-batch{weights=5,2,1})").run(module)
    pipeline(PLAN).run(module)
    with module.context:
        (mesh,) = read_meshes(module).values()
        home = module.body.operations[1].operation
        main = next(
            op.operation
            for op in home.regions[0].blocks[0].operations
            if ir.StringAttr(op.attributes["sym_name"]).value == "main"
        )
        ins = port_shardings(main, "arg_attrs", len(arguments))
        parts = [
            shard(x, from_attribute(s), mesh)
            for x, s in zip(arguments, ins, strict=True)
        ]
        assert [part.shape[0] for part in parts[-1]] == [5, 2, 1]
        results = lockstep.run(module, "main", list(zip(*parts, strict=True)))
    return results, whole(sharded.gradient_text(name), arguments)


@sampled("name, rtol", [("mlp", 1e-6), ("gpt8", 1e-5)], 1)
def test_five_two_one_trains_alike(name: str, rtol: float, elsewhere) -> None:
    """GPT's attention has batch and heads in one dimension: its parts follow."""
    members, expected = elsewhere.submit(_uneven, name).result(120)
    for member in members[1:]:
        for a, b in zip(member, members[0], strict=True):
            assert a.tobytes() == b.tobytes()
    for a, b in zip(members[0], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 10)
