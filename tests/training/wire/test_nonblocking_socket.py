"""A wire that threads share, plain and encrypted: both ways at once, and its ends."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import together

from pcp.errors import PeerLost
from pcp.training.wire.channel import Channel
from pcp.training.wire.messages import (
    Heartbeat,
)
from pcp.training.wire.operator_messages import (
    StatusQuery,
)

CARRIERS = ("plain", "encrypted")


@pytest.fixture(params=CARRIERS)
def channels(request):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    if request.param == "encrypted":
        tls = member_tls()
        far = tls.serve(far)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(Channel, far)
            shaken = pool.submit(lambda: served.result().receive(10))
            near = Channel(tls.dial(near, "far", 10))
            near.send(Heartbeat())
            assert shaken.result(30) == Heartbeat()
        made = [near, served.result()]
    else:
        made = [Channel(near), Channel(far)]
    yield made
    for channel in made:
        channel.close()


def test_both_directions_are_full_at_once(channels) -> None:
    """More each way than the kernel keeps: neither waits for the other to end."""
    content = os.urandom(24 << 20)

    def send(channel):
        channel.send(StatusQuery())
        channel.send_blob(content)

    def receive(channel):
        assert channel.receive(20) == StatusQuery()
        return channel.receive_blob(len(content), 20)

    tasks = [(send, c) for c in channels] + [(receive, c) for c in channels]
    done = together(tasks, lambda task: task[0](task[1]))
    assert done[2:] == [content, content]


def test_closing_wakes_who_waits(channels) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channels[1].receive, 60)
        time.sleep(0.1)
        channels[1].close()
        with pytest.raises(PeerLost):
            waiting.result(30)


def test_who_takes_nothing_is_lost_in_time(channels) -> None:
    with pytest.raises(PeerLost, match="takes nothing any more"):
        channels[0].send_blob(bytes(64 << 20), timeout=0.5)
