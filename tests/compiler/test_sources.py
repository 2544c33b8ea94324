"""Errors name the model's file, wherever in them a location stands."""

import pytest

from pcp.compiler.sources import with_source


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("-:13:26: func.call: no", "m.mlir:13:26: func.call: no"),
        ("-: builtin.module: no", "m.mlir: builtin.module: no"),
        (
            "-: no plan\npp=2: -:13:26: op: no, see -:2:1",
            "m.mlir: no plan\npp=2: m.mlir:13:26: op: no, see m.mlir:2:1",
        ),
        ("a.mlir:3:4: slice [1:-1:2]: 5 -: 6", "a.mlir:3:4: slice [1:-1:2]: 5 -: 6"),
    ],
)
def test_locations_name_the_file(message: str, named: str) -> None:
    assert with_source(message, "m.mlir") == named
    assert with_source(message, "-") == message


def test_a_file_is_taken_as_it_is_written() -> None:
    assert with_source("-:1:2: no", r"C:\g<0>\1") == r"C:\g<0>\1:1:2: no"
