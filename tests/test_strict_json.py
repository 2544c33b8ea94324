"""JSON of numbers that JSON does not know: written so that every parser reads it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.strict_json import dumps, line_of

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
VALUES = st.recursive(
    FLOATS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def strictly(text):
    """What a parser reads that keeps to RFC 8259."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def same(a, b):
    if isinstance(a, float):
        return a == float(b) or (math.isnan(a) and math.isnan(float(b)))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@settings(max_examples=50)
@given(VALUES)
def test_what_is_written_is_json_and_floats_read_it_back(values):
    assert same(values, strictly(dumps(values)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ([1.5, (math.nan,)], '[1.5,["NaN"]]'),
    ],
)
def test_the_words_are_those_of_javascript(value, text):
    assert dumps(value, separators=(",", ":")) == text


def test_without_such_numbers_it_is_pythons_json():
    values = {"b": [1, 2.5, None, True, "NaN"], "a": {"é": 1e-300}}
    layouts: list[dict[str, Any]] = [{}, {"indent": 1}, {"sort_keys": True}]
    for layout in layouts:
        assert dumps(values, **layout) == json.dumps(values, **layout)


def test_the_strict_parser_of_these_tests_bites():
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        strictly(json.dumps([math.nan]))


TEXT = """{
  "a": {"x": [1, {"y:": "a,b"},
         {"y:": 2}],
        "z": 3},

  "b": []
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("a",), 2),
        (("a", "x", 1, "y:"), 2),
        (("a", "x", 2), 3),
        (("a", "x", 2, "y:"), 3),
        (("a", "z"), 4),
        (("a", "none"), 2),
        (("b",), 6),
        (("b", 3), 6),
        ((), 1),
    ],
)
def test_a_place_has_a_line(place, line) -> None:
    assert line_of(TEXT, place) == line
