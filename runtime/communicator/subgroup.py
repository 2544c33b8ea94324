"""Some members of a world form a communicator of their own.

The first of them hosts the meeting, and its address goes round in the world.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pcp.errors import UsageError
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.transport import link

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

_ADDRESS_BYTES = 256


def form(
    world: Any,
    ranks: Sequence[int],
    key: bytes | str | None = None,
    tls: "Tls | None" = None,
) -> Any:
    """The group of `ranks`, in that order; None for who is not among them."""
    ranks = list(ranks)
    legal = all(0 <= rank < world.world_size for rank in ranks)
    if not ranks or len(set(ranks)) != len(ranks) or not legal:
        raise UsageError(
            f"a group takes different ranks below {world.world_size}, not {ranks}"
        )
    member = world.rank in ranks
    hosts = world.rank == ranks[0]
    meeting = None
    if hosts:
        meeting = Rendezvous.listen(f"{_host(world)}:0", key=key, tls=tls)
    try:
        addresses = _share(world, meeting.address if meeting else "")
        if not member:
            return None
        from pcp.runtime.communicator.communicator import Communicator

        return Communicator.connect(
            meeting or addresses[ranks[0]],
            rank=ranks.index(world.rank),
            world_size=len(ranks),
            timeout=world.timeout,
            key=key,
            tls=tls,
        )
    except BaseException:
        if meeting is not None:
            meeting.close()
        raise


def _host(world: Any) -> str:
    """The address on which this member listens, without the port."""
    address = world.address
    if address is None:
        return "127.0.0.1"
    return link.format_address(link.parse_address(address)[0], 0)[:-2]


def _share(world: Any, address: str) -> list[str]:
    """Every member's address, in rank order."""
    own = np.zeros(_ADDRESS_BYTES, np.uint8)
    encoded = address.encode()
    own[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    every = world.all_gather(own, tag="groups").reshape(-1, _ADDRESS_BYTES)
    return [bytes(row).rstrip(b"\0").decode() for row in every]
