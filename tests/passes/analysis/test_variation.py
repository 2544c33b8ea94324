"""What is known of the members' values, along which axes they differ."""

from pcp.passes.analysis.variation import UNKNOWN, _common, _union


def test_what_is_known_of_one_value_only_is_not_known_of_both() -> None:
    a, b = frozenset({"dp", "tp"}), frozenset({"dp"})
    assert (_union([a, b]), _common([a, b])) == (a, b)
    assert _union([a, UNKNOWN]) == _common([a, UNKNOWN]) == UNKNOWN
