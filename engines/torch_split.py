"""`torch.distributed.split_group` for groups on pcp.

Torch's own function asks for an accelerator before it asks the backend. For a group
on pcp the split is a communicator of some of its members instead
(`Communicator.group`); all members of the group call it, and only they.
"""

# Torch's documentation has names that its modules do not export.
# pyright: reportPrivateImportUsage=false

import functools
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pcp.errors import UsageError

_NAME_BYTES = 16


def fresh_name(comm: Any) -> str:
    """A name that no other group has, the same on all members."""
    name = np.frombuffer(secrets.token_bytes(_NAME_BYTES), np.uint8).copy()
    return "pcp-" + comm.broadcast(name, 0, tag="name").tobytes().hex()


def for_groups_of(kind: type) -> Callable[..., Any]:
    """Torch's `split_group`, which splits groups of `kind` by their own method."""
    torchs = c10d.split_group

    @functools.wraps(torchs)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: str | None = None,
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        if not isinstance(parent, kind):
            return torchs(
                parent_pg, split_ranks, timeout, pg_options, group_desc, backend
            )
        return _split(parent, split_ranks or [], timeout, group_desc)

    return split_group


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]],
    timeout: timedelta | None,
    group_desc: str | None,
) -> Any:
    splits = [sorted(ranks) for ranks in split_ranks]
    every = [rank for ranks in splits for rank in ranks]
    legal = all(0 <= rank < parent.size() for rank in every)
    if not splits or not all(splits) or len(set(every)) < len(every) or not legal:
        raise UsageError(
            f"split_ranks are lists of different ranks below {parent.size()}, not "
            f"{split_ranks}"
        )
    mine = next((ranks for ranks in splits if parent.rank() in ranks), splits[0])
    made = parent.split_group(mine, timeout=timeout, group_desc=group_desc)
    if made is not None:
        _introduce(made, parent, mine)
    return made


def _introduce(made: Any, parent: Any, ranks: Sequence[int]) -> None:
    """Make the group known to torch, as its own functions do."""
    globally = dist.get_process_group_ranks(parent)
    backend, _ = c10d._world.pg_map[parent]
    _, store = c10d._world.pg_map[c10d._get_default_group()]
    c10d._register_pg_in_world(
        made,
        backend_name=backend,
        store=dist.PrefixStore(f"{made.group_name}/", store),
        group_name=made.group_name,
        backend_config=c10d._world.pg_backend_config[parent],
        rank_mapping={globally[rank]: place for place, rank in enumerate(ranks)},
    )
