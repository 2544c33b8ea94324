"""A member's connection to the coordinator: leaving, and whom it dials again."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.worlds.communicators import eventually, outcome
from helpers.worlds.elastic_groups import elastic, join

from pcp.errors import CollectiveAborted, PeerLost
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator_client import Coordination


def test_who_closes_waits_for_no_renewal() -> None:
    """Another thread of it does, and would until its time is up."""
    with elastic("a", "b") as (where, comms), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcome, lambda: comms[0].update_membership(30))
        eventually(lambda: where.status()["phase"] == "voting")
        comms[0].close()
        assert isinstance(waiting.result(30), CollectiveAborted)


def test_a_connection_that_comes_after_the_end_is_not_taken() -> None:
    with Endpoint.listen() as endpoint:
        coordination = Coordination(endpoint, "127.0.0.1:9", "a", patience=1)
        coordination.close()
        ours, theirs = socket.socketpair()
        with theirs:
            endpoint.loop.ask(lambda: coordination._adopt(ours))
            assert ours.fileno() == -1


def test_a_port_that_says_nothing_is_not_dialled_without_pause() -> None:
    """As a proxy's, behind which nothing runs."""
    dialled: list[socket.socket] = []

    def hang_up(listener: socket.socket) -> None:
        while True:
            try:
                dialled.append(listener.accept()[0])
            except OSError:
                return
            dialled[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,), daemon=True)
        thread.start()
        where = "{}:{}".format(*listener.getsockname())
        with pytest.raises(PeerLost, match=r"no coordinator.*another program"):
            join(where, "a", timeout=10, patience=0.5)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert len(dialled) < 8
