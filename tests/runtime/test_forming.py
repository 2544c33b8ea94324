"""Making a group's connections: what can be wrong with one when it has its turn."""

import socket

from helpers.worlds import endpoints

from pcp.errors import PeerLost
from pcp.runtime.forming import Forming, members_digest
from pcp.runtime.group import Group
from pcp.runtime.tcp import TcpLink


def test_a_connection_that_broke_while_it_waited_is_a_lost_member() -> None:
    """Else the group has it until its silence is noticed."""
    members = ["a:1", "b:2"]
    ours, theirs = socket.socketpair()
    with theirs, endpoints(1) as (endpoint,):
        group = Group(endpoint.loop, 0, 2, 1)
        forming = Forming(group, members, share=False)

        def greet() -> None:
            link = TcpLink(endpoint.loop, ours, endpoint, "b:2")
            link.sever()
            forming.greet(link, {"rank": 1, "members": members_digest(members)})

        endpoint.loop.ask(greet)
        fault = forming._done.exception(1)
        assert isinstance(fault, PeerLost)
        assert fault.peer == 1
        assert not group.links
