"""The rendezvous of a process group, through torch's own store.

The first rank writes its address under one key, and deletes it when all have joined.
"""

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false

import socket
from datetime import timedelta

import torch.distributed as dist

from pcp.errors import Timeout
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous

_ADDRESS = "pcp/address"


def meet(
    store: dist.Store, rank: int, world_size: int, timeout: timedelta
) -> Communicator:
    """The communicator of all ranks with this store."""
    seconds = timeout.total_seconds()
    if rank:
        try:
            store.wait([_ADDRESS], timeout)
        except dist.DistError as error:
            raise Timeout(f"rank 0 of the group did not come: {error}") from None
        meeting: str | Rendezvous = store.get(_ADDRESS).decode()
    else:
        meeting = Rendezvous.listen(f"{_own_host(store)}:0")
        store.set(_ADDRESS, meeting.address)
    comm = Communicator.connect(
        meeting, rank=rank, world_size=world_size, timeout=seconds
    )
    try:
        if rank == 0:
            # A later group of the same name must not dial this address.
            store.delete_key(_ADDRESS)
        comm.barrier()
    except BaseException:
        comm.close(timeout=0)
        raise
    return comm


def _own_host(store: dist.Store) -> str:
    """The address by which this machine reaches the store; IPv6 in brackets."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return "127.0.0.1"
    family, _, _, _, target = socket.getaddrinfo(
        store.host, store.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: it only chooses a route
        host = probe.getsockname()[0]
    return f"[{host}]" if ":" in host else host
