"""A state as parts of ranks: cut, joined, and who holds copies."""

import math

import numpy as np
import pytest

from pcp.errors import StateMismatch
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.training.storage.island_parts import IslandParts
from pcp.training.trainer.norms import change

CUT = {("param", "a"): ((4, 2), Layout((("tp",), ())))}
FIRST, SECOND = frozenset({("param", "b")}), frozenset({("param", "a")})
"""What the ranks of stage 0 lack, and those of stage 1."""
PARTS = IslandParts(Mesh("m", {"pp": 2, "tp": 2}), CUT, [FIRST, FIRST, SECOND, SECOND])
STATE = {
    "parameter/a": np.arange(8.0).reshape(4, 2),
    "parameter/b": np.arange(3.0),
    "outer/rounds": np.array(7),
}


def held() -> list[dict[str, np.ndarray]]:
    return [PARTS.cut(STATE, at) for at in range(4)]


def test_a_rank_holds_the_tensors_of_its_stage() -> None:
    assert [list(part) for part in held()] == [["parameter/a", "outer/rounds"]] * 2 + [
        ["parameter/b", "outer/rounds"]
    ] * 2
    np.testing.assert_array_equal(held()[1]["parameter/a"], STATE["parameter/a"][2:])
    np.testing.assert_array_equal(held()[3]["parameter/b"], STATE["parameter/b"])


def test_stages_together_hold_the_whole() -> None:
    joined = PARTS.join(held())
    assert joined.keys() == STATE.keys()
    for name, value in STATE.items():
        np.testing.assert_array_equal(joined[name], value)


@pytest.mark.parametrize(("at", "name"), [(0, "parameter/a"), (2, "outer/rounds")])
def test_a_part_that_is_missing_is_told(at: int, name: str) -> None:
    parts = held()
    del parts[at][name]
    with pytest.raises(StateMismatch, match="different tensors"):
        PARTS.join(parts)


def test_a_part_that_belongs_to_another_stage_is_told() -> None:
    parts = held()
    parts[0]["parameter/b"] = STATE["parameter/b"]
    with pytest.raises(StateMismatch, match="different tensors"):
        PARTS.join(parts)


def test_copies_are_of_one_stage_or_of_all() -> None:
    assert PARTS.copies(list(STATE)) == {
        ("tp",): ["parameter/b"],
        ("pp", "tp"): ["outer/rounds"],
    }


def test_each_element_is_counted_once_in_a_norm_of_all() -> None:
    wanted = {("param", "a"): 1, ("grad", "a"): 2, ("param", "b"): 2, ("outer", "r"): 4}
    assert {port: PARTS.holders(port) for port in wanted} == wanted
    new = {name: array + 1.5 for name, array in STATE.items() if array.ndim}
    shares = [change(PARTS.cut(new, at), held()[at], PARTS) for at in range(4)]
    assert math.hypot(*shares) == pytest.approx(change(new, STATE))


def test_a_checkpoint_says_who_holds_what() -> None:
    again = IslandParts.read(PARTS.noted)
    assert again.noted == PARTS.noted
    assert again.digest(STATE) == PARTS.digest(STATE)
    assert again.lacks == PARTS.lacks
