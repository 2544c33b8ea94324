"""How a decoder's tensors lie on an axis of a mesh: heads, the MLP, the vocabulary.

Each member has some of the heads with their keys and values, and of the MLP a part of
its inside; two sums a block join what they add (Shoeybi et al. 2019, arXiv:1909.08053).
Where there are fewer keys than members, these have keys and values whole, and share the
queries of each group. Each expert of a mixture is cut as an MLP is. A head that is not
tied is cut along the vocabulary.
"""

from collections.abc import Mapping

from pcp.decoder_phase import Phase
from pcp.errors import UsageError
from pcp.frontends.decoders.spec import Decoder

AXIS = "tp"
Axes = tuple[tuple[str, ...], ...]


def layouts(spec: Decoder, members: int, phase: Phase) -> Mapping[str, Axes]:
    """The axes that cut each dimension, of each tensor of a function that is cut."""
    keys = _queries(spec, members)[:1]
    cut = {name: keys for name in phase.caches(len(spec.layers)) if any(keys)}
    return {**layouts_of_weights(spec, members), **cut}


def layouts_of_weights(spec: Decoder, members: int) -> Mapping[str, Axes]:
    """As `layouts`, of the parameters."""
    queries = _queries(spec, members)
    keys = queries[:1]
    widths = [spec.ffn] if spec.experts is None else [spec.ffn, spec.experts.ffn]
    if min(widths) < members:
        raise UsageError(
            f"{members} members cannot share an MLP of width {min(widths)}"
        )
    cut: dict[str, Axes] = {
        "q": queries,
        "k": keys,
        "v": keys,
        "o": ((), *queries),
        "gate": ((AXIS,),),
        "up": ((AXIS,),),
        "down": ((), (AXIS,)),
        "experts_gate": ((), (AXIS,)),
        "experts_up": ((), (AXIS,)),
        "experts_down": ((), (), (AXIS,)),
    }
    found: dict[str, Axes] = {}
    for key, piece in spec.pieces().items():
        what, part = key.split(".")[-2:]
        if what == "head":
            found[piece.name] = ((AXIS,),)
        elif what in cut and (part == "weight" or what not in ("o", "down")):
            found[piece.name] = cut[what]
    return {name: axes for name, axes in found.items() if any(axes)}


def _queries(spec: Decoder, members: int) -> Axes:
    """Of [keys, group]: by keys where there are enough, else within each group."""
    if spec.kv_heads >= members:
        return ((AXIS,), ())
    if spec.group >= members:
        return ((), (AXIS,))
    raise UsageError(
        f"tp={members}: the model has {spec.kv_heads} keys and {spec.group} queries "
        f"for each; at most {max(spec.kv_heads, spec.group)} members can share them"
    )
