"""Where a member sits in its group: what every call has to know of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.memory.buffer_pool import BufferPool

_SPELT_OUT = 64
"""Members of a ring that still fit into a descriptor."""


@dataclass(frozen=True)
class MemberContext:
    """A member's place in its group, and its scratch memory."""

    rank: int
    world_size: int
    pool: BufferPool = field(default_factory=BufferPool)
    order: tuple[int, ...] = ()
    """The ring, when it is not that of the ranks."""
    shared_scratch: SharedScratch | None = None
    """Memory to reduce in, where all members are on one machine."""

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The ranks in the order in which large reductions pass them."""
        return self.order or tuple(range(self.world_size))

    @cached_property
    def ring_facts(self) -> dict[str, Any]:
        """What members say of their ring: nothing where it is that of the ranks."""
        if self.ring == tuple(range(self.world_size)):
            return {}
        if self.world_size <= _SPELT_OUT:
            return {"ring": list(self.order)}
        named = ",".join(map(str, self.order)).encode()
        return {"ring": hashlib.blake2b(named, digest_size=16).hexdigest()}

    @cached_property
    def peers(self) -> Sequence[int]:
        """The other ranks."""
        return tuple(rank for rank in range(self.world_size) if rank != self.rank)
