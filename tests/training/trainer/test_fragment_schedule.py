"""When fragments leave and come back: once a round each, inside of it."""

from hypothesis import given
from hypothesis import strategies as st

from pcp.training.trainer.fragment_schedule import Turn, timetable


@given(st.integers(1, 200), st.integers(1, 24), st.integers(0, 50), st.booleans())
def test_each_fragment_has_one_turn_inside_the_round(
    steps: int, fragments: int, delay: int, together: bool
) -> None:
    turns = timetable(steps, fragments, delay, together)
    assert sorted(turn.fragment for turn in turns) == [*range(fragments)]
    for turn in turns:
        assert 0 <= turn.leaves <= turn.returns <= steps
        assert turn.leaves == 0 or turn.returns - turn.leaves == delay
    assert max(turn.returns for turn in turns) == steps
    assert [turn.leaves for turn in turns] == sorted(turn.leaves for turn in turns)


def test_returns_are_spread_over_the_round() -> None:
    assert timetable(6, 2, 1, together=False) == [Turn(0, 2, 3), Turn(1, 5, 6)]
    assert timetable(6, 2, 1, together=True) == [Turn(0, 5, 6), Turn(1, 5, 6)]
    assert timetable(4, 1, 0, together=False) == [Turn(0, 4, 4)]


def test_an_exchange_does_not_reach_into_the_round_before() -> None:
    assert timetable(4, 2, 3, together=False) == [Turn(0, 0, 2), Turn(1, 1, 4)]
