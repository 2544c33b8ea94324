"""Layouts in numpy: what is cut joins again, and disagreement is noticed."""

import numpy as np
import pytest

from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh

MESH = Mesh("m", {"a": 2, "b": 3})
WHOLE = np.arange(35).reshape(7, 5)


@pytest.mark.parametrize(
    "dims",
    [((), ()), (("a",), ()), (("b",), ("a",)), (("a", "b"), ()), ((), ("b", "a"))],
)
def test_what_is_cut_joins_again(dims) -> None:
    parts = shard(WHOLE, Layout(dims), MESH)
    assert len(parts) == 6
    np.testing.assert_array_equal(join(parts, (7, 5), Layout(dims), MESH), WHOLE)


def test_a_scalar_lies_everywhere() -> None:
    parts = shard(np.array(3.0), Layout(()), MESH)
    assert [part.shape for part in parts] == [()] * 6
    assert join(parts, (), Layout(()), MESH) == 3.0


def test_members_that_disagree_are_noticed() -> None:
    layout = Layout((("a",), ()))
    parts = shard(WHOLE, layout, MESH)
    parts[1] = parts[1] + 1
    with pytest.raises(ValueError, match="different values"):
        join(parts, (7, 5), layout, MESH)


def test_what_nobody_holds_is_noticed() -> None:
    layout = Layout((("a",), ()))
    parts = shard(WHOLE, layout, MESH)
    held = [
        part if place["a"] == 0 else None
        for part, place in zip(parts, MESH.members, strict=True)
    ]
    with pytest.raises(ValueError, match="no member holds some parts"):
        join(held, (7, 5), layout, MESH)
    with pytest.raises(ValueError, match="no member holds it"):
        join([None] * 6, (7, 5), layout, MESH)


def test_nan_is_equal_to_itself() -> None:
    parts = shard(np.array([np.nan, 1.0]), Layout(((),)), MESH)
    assert np.isnan(join(parts, (2,), Layout(((),)), MESH)[0])


def test_room() -> None:
    assert Layout((("a", "b"), ())).fits((6, 1), MESH)
    assert not Layout((("a", "b"), ())).fits((5, 1), MESH)
