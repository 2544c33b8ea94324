"""Making a group's connections: what can be wrong with one when it has its turn."""

import socket
import threading
import time

import pytest
from helpers.worlds.communicators import endpoints

from pcp.errors import CollectiveAborted, PeerLost
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.group.group import Group
from pcp.runtime.group.mesh_formation import MeshFormation, members_digest
from pcp.runtime.transport.tcp import TcpLink


def test_a_connection_that_broke_while_it_waited_is_a_lost_member() -> None:
    """Else the group has it until its silence is noticed."""
    members = ["a:1", "b:2"]
    ours, theirs = socket.socketpair()
    with theirs, endpoints(1) as (endpoint,):
        group = Group(endpoint.loop, 0, 2, 1)
        formation = MeshFormation(
            group, members, ConnectionOptions(shared_memory=False, streams=1)
        )

        def greet() -> None:
            link = TcpLink(endpoint.loop, ours, endpoint, "b:2")
            link.sever()
            formation.greet(link, {"rank": 1, "members": members_digest(members)})

        endpoint.loop.ask(greet)
        fault = formation._done.exception(1)
        assert isinstance(fault, PeerLost)
        assert fault.peer == 1
        assert not group.links


def test_a_formation_that_is_called_off_does_not_wait_for_who_is_gone() -> None:
    """A stopped process: its kernel takes the connection, and nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        endpoint = Endpoint.listen("127.0.0.1:0", key="0123456789abcdef")
        timer = threading.Timer(0.3, endpoint.cancel, ["epoch 2 takes over"])
        try:
            timer.start()
            first = f"127.0.0.1:{gone.getsockname()[1]}"
            with pytest.raises(CollectiveAborted, match="epoch 2 takes over"):
                endpoint.form(1, [first, endpoint.address], 1, timeout=60.0)
        finally:
            timer.join()
            endpoint.close()


def test_a_formation_that_is_called_off_does_not_wait_for_who_hangs_behind_it() -> None:
    """All are connected, and the thread of one does not come to where they meet."""
    with endpoints(2) as (one, hung):
        members = [one.address, hung.address]

        def connect() -> None:
            formation = hung._formation(1, members, 1, "")
            hung.loop.ask(lambda: hung._begin(formation))
            formation.wait(time.monotonic() + 30.0)
            time.sleep(0.2)
            one.cancel("epoch 2 takes over")

        thread = threading.Thread(target=connect)
        thread.start()
        with pytest.raises(CollectiveAborted, match="epoch 2 takes over"):
            one.form(1, members, 0, timeout=30.0)
        thread.join()
