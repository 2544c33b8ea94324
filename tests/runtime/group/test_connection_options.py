"""Options of connections: one value, taken apart into keywords that are checked."""

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest

from pcp.errors import ConfigError
from pcp.runtime import Endpoint
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.connection_options import ConnectionKeywords, ConnectionOptions
from pcp.runtime.transport.tls import Tls

MADE = (Communicator.connect, Communicator.join, Endpoint.listen)


def test_keywords_are_the_fields_and_have_their_types() -> None:
    known = {"Tls": Tls}
    assert get_type_hints(ConnectionKeywords, localns=known) == get_type_hints(
        ConnectionOptions, localns=known
    )


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__qualname__)
def test_signatures_show_every_option(made) -> None:
    shown = inspect.signature(made).parameters
    assert {field.name for field in fields(ConnectionOptions)} < set(shown)
    assert shown["silence"].default == (5.0 if made.__name__ == "join" else 10.0)
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())


@pytest.mark.parametrize(
    "call",
    [
        lambda **more: Communicator.connect("a:1", rank=0, world_size=1, **more),
        lambda **more: Communicator.join("a:1", **more),
        Endpoint.listen,
    ],
)
def test_what_is_no_option_is_a_type_error(call) -> None:
    with pytest.raises(TypeError, match="slience"):
        call(slience=3.0)


def test_values_that_cannot_be_are_refused_before_anything_is_opened() -> None:
    impossible: list[dict[str, Any]] = [
        {"streams": 0},
        {"streams": 1 << 20},
        {"key": "short"},
    ]
    for wrong in impossible:
        with pytest.raises(ConfigError):
            ConnectionOptions(**wrong)
    with pytest.raises(FrozenInstanceError):
        ConnectionOptions().silence = 3.0  # pyright: ignore[reportAttributeAccessIssue]


def test_a_key_is_not_printed() -> None:
    assert "a secret of many words" not in repr(
        ConnectionOptions(key="a secret of many words")
    )
