"""Torch on an elastic world: ranks that come and go under one default group.

    dist.init_process_group("pcp", init_method="pcp://coordinator:48148?name=anna")
    world = dist.group.WORLD
    while training:
        world.update_membership()          # between two steps, on all members
        world.retry(step)                  # again among the survivors

The coordinator (`pcp coordinator`) says who is there; ranks and the number of members
are the renewed group's. With each renewal that changes it the first rank serves a new
store, through which `new_group` meets, so that nobody's end ends the world.
"""

# Torch's documentation has names that its modules do not export.
# pyright: reportPrivateImportUsage=false

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pcp.errors import CollectiveAborted, PeerLost, UsageError
from pcp.runtime.collectives.call import seconds
from pcp.runtime.communicator.communicator import Communicator, ElasticCommunicator
from pcp.runtime.transport.address import parse_address

T = TypeVar("T")
SCHEME = "pcp"
_CONNECTING_S = 10.0
"""Seconds to reach a store that is served already."""
_LONGEST = 256
"""Bytes of a store's address."""
_joined: dict[tuple[str, int], ElasticCommunicator] = {}
"""Worlds that were joined and have no group yet, by the address of their store."""


def rendezvous(
    url: str, timeout: timedelta = dist.default_pg_timeout, **_: object
) -> Iterator[tuple[dist.Store, int, int]]:
    """Torch's way to a store, a rank and a number of ranks: join the world at `url`."""
    asked = urlsplit(url)
    said = parse_qs(asked.query)
    if wrong := sorted(said.keys() - {"name"}):
        raise UsageError(
            f"{url}: an elastic world takes name=..., not {', '.join(wrong)}; ranks "
            "and their number are the coordinator's"
        )
    limit = timeout.total_seconds()
    name = said.get("name", [None])[-1]
    comm = Communicator.join(asked.netloc, name=name, timeout=limit)
    try:
        store = _shared_store(comm, time.monotonic() + limit)
    except BaseException:
        comm.close(timeout=0)
        raise
    _joined[_address(store)] = comm
    yield store, comm.rank, comm.world_size
    raise UsageError(f"{url}: a group of an elastic world is renewed, not met again")


def joined(store: dist.Store) -> ElasticCommunicator | None:
    """The world that was joined for this store, once."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return _joined.pop(_address(store), None)


def renew(group: Any, timeout: timedelta | float | None) -> bool:
    """Renew the group's world, and what torch knows of it; True if it changed."""
    comm = _elastic(group)
    limit = comm.timeout if timeout is None else seconds(timeout)
    deadline = time.monotonic() + limit
    if not comm.update_membership(limit):
        return False
    group.store = store = _shared_store(comm, deadline)
    if group in c10d._world.pg_map:
        backend, _ = c10d._world.pg_map[group]
        c10d._world.pg_map[group] = backend, dist.PrefixStore("default_pg", store)
        ranks = {rank: rank for rank in range(comm.world_size)}
        c10d._world.pg_group_ranks[group] = ranks
    return True


def retry(group: Any, step: Callable[[], T], timeout: timedelta | float | None) -> T:
    """`step()`, again among the survivors for as long as members are lost."""
    limit = _elastic(group).timeout if timeout is None else seconds(timeout)
    deadline = time.monotonic() + limit
    while True:
        try:
            return step()
        except (PeerLost, CollectiveAborted):
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            group.update_membership(left)
            group.fresh = True  # newcomers begin behind the renewal, too


def _elastic(group: Any) -> ElasticCommunicator:
    if isinstance(group.comm, ElasticCommunicator):
        return group.comm
    raise UsageError(
        "this group's members are fixed; an elastic one is made by "
        'init_process_group("pcp", init_method="pcp://HOST:PORT") with the address of '
        "a coordinator"
    )


def _shared_store(comm: ElasticCommunicator, deadline: float) -> dist.TCPStore:
    """A store that the first rank serves, the same on all; outlives lost members."""
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            return _served_store(comm, left)
        except (PeerLost, CollectiveAborted):
            if time.monotonic() >= deadline:
                raise
            comm.update_membership(max(deadline - time.monotonic(), 0.001))


def _served_store(comm: ElasticCommunicator, left: float) -> dist.TCPStore:
    limit = timedelta(seconds=min(left, _CONNECTING_S))
    place, store = np.zeros(_LONGEST, np.uint8), None
    if comm.rank == 0:
        assert comm.address is not None, "an elastic member has a listener"
        host, _ = parse_address(comm.address)
        store = dist.TCPStore(host, 0, None, True, limit, wait_for_workers=False)
        said = f"{host} {store.port}".encode()
        place[: len(said)] = np.frombuffer(said, np.uint8)
    comm.broadcast(place, 0, tag="torch/store", timeout=left)
    if store is None:
        host, _, port = place.tobytes().rstrip(b"\0").decode().partition(" ")
        try:
            store = dist.TCPStore(
                host, int(port), None, False, limit, wait_for_workers=False
            )
        except dist.DistError as error:
            raise PeerLost(f"rank 0 serves no store: {error}", peer=0) from None
    return store


def _address(store: dist.Store) -> tuple[str, int]:
    return (store.host, store.port) if isinstance(store, dist.TCPStore) else ("", 0)
