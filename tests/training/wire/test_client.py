"""A worker's line: what it says while nobody is there."""

import threading

from helpers.servers.processes import free_port

from pcp.errors import PeerLost
from pcp.training.wire.client import ShepherdLink, Timing
from pcp.training.wire.messages import (
    Hello,
)


def introduce() -> Hello:
    raise AssertionError("nobody is there")


def test_nobody_there_is_said_once_and_tried_again():
    said, gone, errors = [], threading.Event(), []

    def failed(error):
        errors.append(error)
        gone.set()

    port = free_port()
    link = ShepherdLink(
        [("127.0.0.1", port)],
        introduce=introduce,
        expected=lambda _: None,
        welcomed=lambda *_: None,
        received=lambda _: None,
        failed=failed,
        log=said.append,
        timing=Timing(patience=0.5),
    )
    link.start()
    try:
        assert gone.wait(10)
    finally:
        link.close()
    (line,) = said
    assert line.startswith(f"no shepherd at 127.0.0.1:{port}: ")
    assert line.endswith("; trying again, for 0.5 s")
    assert isinstance(errors[0], PeerLost)
