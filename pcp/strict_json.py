"""JSON that every reader takes, of numbers that JSON has no word for.

RFC 8259 knows no NaN and no infinity. Python's `json` writes words of its own for them,
at which a browser, jq and most parsers stop; pydantic writes `null`, and what was said
is lost. Here they are strings, which `float` reads back, as JavaScript's `Number` does:

    nan "NaN"    inf "Infinity"    -inf "-Infinity"

All JSON that pcp writes is written here (`tests/architecture/test_json.py`). Of what is
read, `float(value)` is the number, whichever way it was written.
"""

import json
import math
from typing import Any


def dumps(values: Any, **layout: Any) -> str:
    """`values` as JSON; `layout` are `json.dumps`'s own options, such as `indent`."""
    try:
        return json.dumps(values, allow_nan=False, **layout)
    except ValueError:  # there is such a number in it
        return json.dumps(_spelt(values), allow_nan=False, **layout)


def _spelt(values: Any) -> Any:
    """The same with a string for each number that is not finite."""
    if isinstance(values, float):
        return values if math.isfinite(values) else _word(values)
    if isinstance(values, dict):
        return {key: _spelt(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_spelt(value) for value in values]
    return values


def _word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
