"""Fragments: disjoint, complete, strided by layer, balanced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import PassError
from pcp.passes.training.outer.parts import fragments

GPT = [
    "wte.weight",
    "wpe.weight",
    *(f"h.{i}.{part}" for i in range(6) for part in ("ln.bias", "attn.0.w", "mlp.w")),
    "ln_f.weight",
    "head.weight",
]


def test_layers_are_strided_and_whole() -> None:
    sizes = [1] * len(GPT)
    found = fragments.assign(GPT, sizes, 3)
    where = {GPT[i]: p for p, fragment in enumerate(found) for i in fragment}
    for layer in range(6):
        homes = {where[n] for n in GPT if n.startswith(f"h.{layer}.")}
        assert homes == {layer % 3}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("h.3.mlp.0.w", 3),
        ("blocks_12_attn", 12),
        ("0", 0),
        ("layer/7/w", 7),
        ("conv2d.weight", None),
        ("head.weight", None),
    ],
)
def test_the_layer_is_the_first_number_of_a_name(name: str, layer: int | None) -> None:
    assert fragments.layer_of(name) == layer


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(1, 8))
def test_fragments_are_disjoint_complete_and_balanced(
    sizes: list[int], count: int
) -> None:
    """Greedy packing, largest first: the spread is at most the largest tensor."""
    names = [f"p{chr(97 + i % 26)}" for i in range(len(sizes))]
    if count > len(sizes):
        with pytest.raises(PassError, match="fragment needs one"):
            fragments.assign(names, sizes, count)
        return
    found = fragments.assign(names, sizes, count)
    assert sorted(i for fragment in found for i in fragment) == [*range(len(sizes))]
    assert all(found)
    weights = [sum(sizes[i] for i in fragment) for fragment in found]
    assert max(weights) - min(weights) <= max(sizes)


def test_the_embedding_evens_out_the_fragments() -> None:
    names = ["wte", *(f"h.{i}.w" for i in range(3))]
    assert fragments.assign(names, [50, 100, 100, 100], 3)[0] == [0, 1]
    assert fragments.assign(names, [50, 100, 100, 10], 3)[2] == [0, 3]
