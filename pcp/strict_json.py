"""JSON that every reader takes, of numbers that JSON has no word for.

RFC 8259 knows no NaN and no infinity. Python's `json` writes words of its own for them,
at which a browser, jq and most parsers stop; pydantic writes `null`, and what was said
is lost. Here they are strings, which `float` reads back, as JavaScript's `Number` does:

    nan "NaN"    inf "Infinity"    -inf "-Infinity"

All JSON that pcp writes is written here, and all that it reads is parsed here
(`tests/architecture/test_json.py`). Of what is read, `float(value)` is the number,
whichever way it was written.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any


def dumps(values: Any, **layout: Any) -> str:
    """`values` as JSON; `layout` are `json.dumps`'s own options, such as `indent`."""
    try:
        return json.dumps(values, allow_nan=False, **layout)
    except ValueError:  # there is such a number in it
        return json.dumps(_spelt(values), allow_nan=False, **layout)


def parse(raw: bytes | str, **how: Any) -> Any:
    """What JSON says; `ValueError` for anything else, and for JSON that is too deep.

    `how` are `json.loads`'s own options, such as `object_pairs_hook`.
    """
    try:
        return json.loads(raw, **how)
    except RecursionError:
        raise ValueError("lists and objects too deep in each other") from None


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def line_of(text: str, place: Sequence[str | int]) -> int:
    """The line, from 1, of what a valid JSON text has at a path of keys and indices.

    Where the text has only the beginning of the path, the line of that.
    """
    wanted, best, line = tuple(place), 0, 1
    path: list[str | int] = []
    tokens = [(m[0], text.count("\n", 0, m.start()) + 1) for m in _TOKEN.finditer(text)]
    for number, (token, at) in enumerate(tokens):
        if token == "{":
            path.append("")
        elif token == "[":
            path.append(0)
        elif token in "}]":
            path.pop()
        elif token == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
            continue  # what comes next is at that place
        elif number + 1 < len(tokens) and tokens[number + 1][0] == ":":
            path[-1] = json.loads(token)
        if best < len(path) <= len(wanted) and tuple(path) == wanted[: len(path)]:
            best, line = len(path), at
    return line


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
