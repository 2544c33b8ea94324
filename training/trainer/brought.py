"""Values that come with a model: frozen tensors, and first values without a seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from pcp.errors import BundleError
from pcp.manifest import TensorSpec
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.state_names import (
    FROZEN,
    PARAMETER,
    STATE,
    as_taken,
    check_like,
    like,
)
from pcp.training.trainer.functions import Key
from pcp.training.trainer.step_loop import MODEL_STATE

_HOMES = {"frozen": FROZEN, MODEL_STATE: STATE, "param": PARAMETER}
"""The prefix of a tensor's name in a state, by its role."""


def taken(
    given: Mapping[str, np.ndarray],
    wanted: Sequence[TensorSpec],
    parts: IslandParts,
    coordinate: int,
) -> dict[Key, np.ndarray]:
    """A rank's parts of the whole tensors in `given`, in its program's types.

    `StateMismatch` if one is missing that is no parameter: parameters are in a state.
    """
    homes = {t.name: _HOMES[t.role] for t in wanted}
    whole = {homes[name] + name: a for name, a in given.items() if name in homes}
    own = parts.cut(whole, coordinate)
    named = {n: own[at + n] for n, at in homes.items() if at + n in own}
    found = as_taken(named, wanted)
    needed = [t for t in wanted if t.role != "param" or t.name in found]
    check_like({t.name: like(t) for t in needed}, found)
    return {t.key: np.array(found[t.name]) for t in needed}


def check(wanted: Sequence[TensorSpec], given: Mapping[Key, np.ndarray]) -> None:
    """`BundleError` if a value that does not follow from the seed is missing."""
    if lacking := [t.name for t in wanted if t.key not in given]:
        raise BundleError(
            f"the model brings {lacking[0]!r}, and nobody gave it; name the file "
            "that `pcp export` wrote beside the model as frozen_weights"
        )
