"""Subgroups: some members of a world form a communicator of their own.

The first of them hosts the rendezvous; the members get its address by an all_gather in
the world.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.group.group import Group
from pcp.runtime.group.rendezvous import Rendezvous, meet
from pcp.runtime.transport.address import format_address, parse_address

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

_ADDRESS_BYTES = 256


class World(Protocol):
    """The communicator whose members form the group."""

    timeout: float

    @property
    def rank(self) -> int:
        """This member's number."""
        ...

    @property
    def world_size(self) -> int:
        """How many members there are."""
        ...

    @property
    def address(self) -> str | None:
        """The address of this member's listener."""
        ...

    def all_gather(self, array: NDArray, *, tag: str = "") -> NDArray:
        """All members' arrays, joined."""
        ...


def form(
    world: World,
    ranks: Sequence[int],
    key: bytes | str | None = None,
    tls: "Tls | None" = None,
) -> tuple[Group, list[Any]] | None:
    """The group of `ranks`, in that order, and the objects to close with it.

    None for a member that is not among them.
    """
    ranks = list(ranks)
    legal = all(0 <= rank < world.world_size for rank in ranks)
    if not ranks or len(set(ranks)) != len(ranks) or not legal:
        raise UsageError(
            f"a group takes different ranks below {world.world_size}, not {ranks}"
        )
    meeting = None
    if world.rank == ranks[0]:
        meeting = Rendezvous.listen(f"{_host(world)}:0", key=key, tls=tls)
    try:
        addresses = _share(world, meeting.address if meeting else "")
        if world.rank not in ranks:
            return None
        return meet(
            meeting or addresses[ranks[0]],
            ranks.index(world.rank),
            len(ranks),
            world.timeout,
            ConnectionOptions(key=key, tls=tls),
        )
    except BaseException:
        if meeting is not None:
            meeting.close()
        raise


def _host(world: World) -> str:
    """The address on which this member listens, without the port."""
    address = world.address
    if address is None:
        return "127.0.0.1"
    return format_address(parse_address(address)[0], 0)[:-2]


def _share(world: World, address: str) -> list[str]:
    """Every member's address, in rank order."""
    own = np.zeros(_ADDRESS_BYTES, np.uint8)
    encoded = address.encode()
    own[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    every = world.all_gather(own, tag="groups").reshape(-1, _ADDRESS_BYTES)
    return [bytes(row).rstrip(b"\0").decode() for row in every]
