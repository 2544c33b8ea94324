"""Which parameters travel together: fragments of a model, by its layers.

Layer l belongs to fragment l mod P (strided: Douillard et al. 2025 find it slightly
better than consecutive layers, and a fragment then has layers of all depths). What
belongs to no layer, such as embeddings and the head, goes to the lightest fragment,
the largest first. A model with fewer layers than fragments is packed tensor by tensor.
"""

import re
from collections.abc import Sequence

from pcp.errors import PassError


def assign(names: Sequence[str], sizes: Sequence[int], count: int) -> list[list[int]]:
    """The positions of the parameters in each of `count` fragments, ascending.

    Every parameter is in one fragment, and no fragment is empty: `PassError` when
    there are fewer parameters than fragments. `sizes` are numbers of elements.
    """
    if count > len(names):
        raise PassError(
            f"{count} fragments of a model with {len(names)} parameters; a fragment "
            "needs one at least"
        )
    layers = [layer_of(name) for name in names]
    numbers = sorted({layer for layer in layers if layer is not None})
    strided = len(numbers) >= count
    place = {layer: i % count for i, layer in enumerate(numbers)} if strided else {}
    fragments: list[list[int]] = [[] for _ in range(count)]
    loose = []
    for i, layer in enumerate(layers):
        if layer in place:
            fragments[place[layer]].append(i)
        else:
            loose.append(i)
    _pack(fragments, sorted(loose, key=lambda i: (-sizes[i], i)), sizes)
    return [sorted(fragment) for fragment in fragments]


def layer_of(name: str) -> int | None:
    """The first whole part of a dotted name that is a number: 3 in `h.3.mlp.0.w`."""
    match = re.search(r"(?:^|[./_])(\d+)(?=[./_]|$)", name)
    return int(match.group(1)) if match else None


def _pack(
    fragments: list[list[int]], order: Sequence[int], sizes: Sequence[int]
) -> None:
    """Each into the lightest fragment so far; an empty one is lighter than any."""
    weights = [
        (len(fragment), sum(sizes[i] for i in fragment)) for fragment in fragments
    ]
    for i in order:
        lightest = min(
            range(len(fragments)), key=lambda p: (weights[p][0] > 0, weights[p][1], p)
        )
        fragments[lightest].append(i)
        held, size = weights[lightest]
        weights[lightest] = (held + 1, size + sizes[i])
