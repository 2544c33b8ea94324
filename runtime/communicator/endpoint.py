"""The endpoint for users: its groups come as communicators."""

from collections.abc import Sequence

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.group_endpoint import GroupEndpoint


class Endpoint(GroupEndpoint):
    """A process's address in the mesh. Make one with `Endpoint.listen`."""

    def form(
        self,
        epoch: int,
        members: Sequence[str],
        rank: int,
        timeout: float = 30.0,
        scope: str = "",
    ) -> Communicator:
        """The communicator of `members` (addresses in rank order) for an epoch.

        Blocks until all members have formed it. Groups of older epochs of the scope
        are closed, and a `form` of an older epoch under way is abandoned. Raises
        PeerLost when a member cannot be reached, Timeout naming the missing ranks
        after `timeout` seconds, ProtocolError when a member refuses.
        """
        group = self.form_group(epoch, members, rank, timeout, scope)
        return Communicator(group)
