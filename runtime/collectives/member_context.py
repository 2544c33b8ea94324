"""The member context: the facts of its member that every call needs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.memory.buffer_pool import BufferPool
from pcp.wire import Distance

_SPELT_OUT = 64
"""A ring of up to so many members stands in descriptors as a list."""


@dataclass(frozen=True)
class MemberContext:
    """A member's rank, its group's size and ring, and its scratch memory."""

    rank: int
    world_size: int
    pool: BufferPool = field(default_factory=BufferPool)
    order: tuple[int, ...] = ()
    """The ring; empty when it is in the order of the ranks."""
    distance: Distance | None = None
    """How far the members are from each other; None: near, as far as is known."""
    shared_scratch: SharedScratch | None = None
    """The scratch in which members of one machine reduce; None elsewhere."""

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The ranks in the order in which large reductions pass them."""
        return self.order or tuple(range(self.world_size))

    @cached_property
    def ring_facts(self) -> dict[str, Any]:
        """The ring in descriptors; empty where it is in the order of the ranks."""
        if self.ring == tuple(range(self.world_size)):
            return {}
        if self.world_size <= _SPELT_OUT:
            return {"ring": list(self.order)}
        named = ",".join(map(str, self.order)).encode()
        return {"ring": hashlib.blake2b(named, digest_size=16).hexdigest()}

    def along_ring(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The descriptor of a reduction along the ring."""
        return facts | self.ring_facts if self.ring_facts else facts

    @cached_property
    def peers(self) -> Sequence[int]:
        """The other ranks."""
        return tuple(rank for rank in range(self.world_size) if rank != self.rank)
