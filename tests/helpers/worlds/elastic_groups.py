"""Elastic worlds in this process: a coordinator and members that come and go."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from helpers.worlds.communicators import together

from pcp.runtime.communicator.communicator import Communicator, ElasticCommunicator
from pcp.runtime.group.coordinator import Coordinator


def join(where: str, name: str, **options: Any) -> ElasticCommunicator:
    """A member; blocks until it is in."""
    options = {"timeout": 30.0} | options
    return Communicator.join(where, name=name, **options)


@contextmanager
def elastic(*names: str) -> Iterator[tuple[Coordinator, list[ElasticCommunicator]]]:
    """A coordinator and its first members, by rank; members added are closed too."""
    with ExitStack() as stack:
        where = stack.enter_context(
            Coordinator.listen("127.0.0.1:0", first=len(names), silence=5)
        )
        comms = together(names, lambda name: join(where.address, name))
        together(comms, lambda comm: comm.update_membership())
        comms.sort(key=lambda comm: comm.rank)
        stack.callback(lambda: [comm.close() for comm in comms])
        yield where, comms
