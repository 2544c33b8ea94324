"""The collectives a program calls: one member's handle on its group.

    comm = Communicator.connect("127.0.0.1:29500", rank=0, world_size=4)
    comm.all_reduce(array, op="mean")

All members must make the same calls. Operations are matched by their tag and
the number of calls with it, so any number may be under way at once; calls
without a tag share one and are matched in the order of the calls. `barrier` and
`close` come after all earlier operations. Every operation has a deadline; it either
completes on all members, or raises on all and leaves their arrays as they were. A
forked process cannot use a communicator of its parent.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from pcp.errors import (
    CollectiveAborted,
    PeerLost,
    Timeout,
    UsageError,
)
from pcp.runtime.collectives.call import Seconds, seconds
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator import backend_registry, in_process_world, subgroup
from pcp.runtime.communicator.group_communicator import (
    GroupCommunicator,
    member_context,
)
from pcp.runtime.group.connection_options import (
    ConnectionKeywords,
    ConnectionOptions,
    expanded,
)
from pcp.runtime.group.elastic import Renewal, join
from pcp.runtime.group.group import Group
from pcp.runtime.group.rendezvous import Rendezvous, meet
from pcp.runtime.transport.fault_injection import FaultPlan

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

T = TypeVar("T")
_FIXED = ConnectionOptions()
_ELASTIC = ConnectionOptions(silence=5.0)
"""An elastic world goes on without a lost member: it declares it lost sooner."""


class Communicator(GroupCommunicator):
    """One member of a group. Safe to use from several threads."""

    @classmethod
    @expanded(_FIXED)
    def connect(
        cls,
        address: str | Rendezvous,
        *,
        rank: int,
        world_size: int,
        timeout: float | timedelta = 60.0,
        **options: Unpack[ConnectionKeywords],
    ) -> "Communicator":
        """Join a world of fixed size; rank 0 hosts the rendezvous at `address`.

        Rank 0 may pass a `Rendezvous` that already listens (the way to use
        port 0). Other ranks dial until a rendezvous listens there. Raises
        ProtocolError when refused (duplicate rank, other world size, other
        protocol version), Timeout naming the missing ranks. Between
        members on one machine large payloads go through `shared_memory`. With a
        `key` every member must have the same (`authentication`). `streams`
        is the number of connections to each peer: over long round trips several
        carry more (`striped`), and "auto" makes them there. With `tls` they are
        encrypted, and every member needs a certificate of its authority
        (`tls.Tls`).

        With a scheme the address names another engine (`backend_registry`):
        `gloo://host:port` and `nccl://host:port` of torch.distributed, `mpi://` under
        mpirun. It takes the same calls; its guarantees are its own
        (docs/collectives.md).
        """
        limit, chosen = seconds(timeout), _FIXED.changed(options)
        if isinstance(address, str):
            scheme, address = backend_registry.split(address)
            if scheme != backend_registry.OWN:
                return backend_registry.connect(
                    scheme,
                    address,
                    chosen.of_pcp_alone(),
                    rank=rank,
                    world_size=world_size,
                    timeout=limit,
                )
        group, owned = meet(address, rank, world_size, limit, chosen)
        return cls(group, timeout=limit, owned=owned)

    @classmethod
    @expanded(_ELASTIC)
    def join(
        cls,
        address: str,
        *,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        timeout: float | timedelta = 60.0,
        patience: float = 60.0,
        **options: Unpack[ConnectionKeywords],
    ) -> "ElasticCommunicator":
        """Join the elastic world of the coordinator at `address`.

        Blocks until the present members renew their group (`update_membership`), or
        until enough have joined for the first. `name` identifies the member, in
        messages too. `listen` and `advertise` are as in
        `Endpoint.listen`; without them peers use the address by which this
        machine reaches the coordinator. A coordinator that is gone has
        `patience` seconds to come back. Raises ProtocolError when refused,
        PeerLost when there is no coordinator, Timeout without a renewal.
        """
        scheme, place = backend_registry.split(address)
        if scheme != backend_registry.OWN:
            raise UsageError(
                f"{scheme}:// has no elastic world; join HOST:PORT of a coordinator"
            )
        limit = seconds(timeout)
        renewal, group = join(
            place,
            time.monotonic() + limit,
            _ELASTIC.changed(options),
            name=name,
            listen=listen,
            advertise=advertise,
            patience=patience,
        )
        return ElasticCommunicator(renewal, group, limit)

    @classmethod
    def in_process(
        cls,
        world_size: int,
        *,
        epoch: int = 0,
        timeout: float | timedelta = 60.0,
        faults: Mapping[int, FaultPlan] | None = None,
    ) -> list[Self]:
        """All members of a world inside this process, in rank order."""
        return [
            cls(group, timeout=seconds(timeout), owned=[group.loop])
            for group in in_process_world.groups(world_size, epoch, faults or {})
        ]

    def group(
        self,
        ranks: Sequence[int],
        *,
        key: bytes | str | None = None,
        tls: "Tls | None" = None,
    ) -> "Communicator | None":
        """A communicator of some members; their ranks are their places in `ranks`.

        All members call it; each names the group it belongs to, so that a world
        can fall into several at once. None for a member that is not in `ranks`.
        Give the `key` and `tls` again that the world has. Close it before the world.
        """
        formed = subgroup.form(self, ranks, key, tls)
        if formed is None:
            return None
        group, owned = formed
        return Communicator(group, timeout=self.timeout, owned=owned)


class ElasticCommunicator(Communicator):
    """A communicator whose group can be renewed. Made by `Communicator.join`.

        comm = Communicator.join("coordinator:48148")
        while training:
            comm.update_membership()              # between two steps
            try:
                comm.all_reduce(gradient, "mean")
            except (PeerLost, CollectiveAborted):
                continue                          # the input is as it was: try again

    `comm.retry(step)` does the same. An operation happens on all survivors or on
    none, by the decision of `membership`.
    """

    def __init__(self, renewal: Renewal, group: Group, timeout: float) -> None:
        self._renewal = renewal
        owned = [renewal.coordination, renewal.endpoint]
        super().__init__(group, timeout=timeout, owned=owned)
        self._fresh = True

    @property
    def names(self) -> list[str]:
        """The members' names by rank."""
        return list(self._renewal.coordination.agent.names)

    def are_peers_pending(self, timeout: Seconds = None) -> bool:
        """Whether others wait to be let in by the next `update_membership`.

        Asks the coordinator; Timeout if it does not answer.
        """
        limit = self._patience(timeout)
        here = self._renewal.coordination.present(limit)
        if here is None:
            raise Timeout(f"the coordinator did not say in {limit:g} s who waits")
        return bool(here.waiting)

    def update_membership(self, timeout: Seconds = None) -> bool:
        """Renew the group: newcomers enter, dead members leave. True if it changed.

        To be called by all members between two steps; blocks until all have. The
        first call after `join`, or at the start of a step that `retry` makes again,
        returns at once: the group has just been renewed.
        UsageError while operations of this member are under way. Timeout when
        other members do not call it; the call can be repeated.
        """
        deadline = time.monotonic() + self._patience(timeout)
        if self._closed:
            raise CollectiveAborted("this member closed its communicator")
        fresh, self._fresh = self._fresh, False
        if fresh and self._group.fault is None:
            return True
        renewed = self._renewal.renew(self._group, deadline)
        if renewed is None:
            return False
        with self._lock:
            old, self._group = self._group, renewed
            self._context = member_context(renewed, self._context.pool)
            self._syncs = itertools.count()
        renewed.loop.call(old.close)
        renewed.telemetry.count("renewal")
        return renewed.epoch != old.epoch

    def retry(
        self, step: "Callable[[ElasticCommunicator], T]", timeout: Seconds = None
    ) -> T:
        """`step(self)`, again among the survivors for as long as members are lost.

        All members must call it alike. An operation of the step that completed
        has completed on all; the step is to be written so that it can be
        repeated (a single collective can).
        """
        deadline = time.monotonic() + self._patience(timeout)
        while True:
            try:
                return step(self)
            except (PeerLost, CollectiveAborted):
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    raise
                self._group.telemetry.count("retry")
                self.update_membership(left)
                # The renewal is done: newcomers begin behind it, too.
                self._fresh = True

    # Inside.

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        self._fresh = False
        return super()._post(operation, tag, turn)
