"""Which stage of a pipeline has which layers of a decoder, and so which tensors.

The first stage has the table of embeddings, the last one the head; a tied table is on
both. A token's time is that of reading weights, so stages hold about as many of those
that products are made with: the head counts as the layers that it is as large as.
"""

from collections.abc import Mapping
from math import prod

from pcp.errors import UsageError
from pcp.frontends.decoders.spec import Decoder

AXIS = "pp"


def of_layers(spec: Decoder, stages: int) -> tuple[int, ...]:
    """The stage of each layer."""
    layers = len(spec.layers)
    if layers < stages:
        raise UsageError(
            f"{AXIS}={stages}: the model has {layers} layers, and a stage has one at "
            "least"
        )
    if stages == 1:
        return (0,) * layers
    sizes = {key: prod(piece.shape) for key, piece in spec.pieces().items()}
    layer = sum(n for key, n in sizes.items() if key.startswith("0."))
    head = sizes["embed.weight"] / layer
    last = round((layers + head) / stages - head)
    last = min(max(last, 1), layers - stages + 1)
    others = stages - 1
    found = [n * others // (layers - last) for n in range(layers - last)]
    return (*found, *[others] * last)


def holders(spec: Decoder, stages: int) -> Mapping[str, tuple[int, ...]]:
    """The stages that hold each parameter, by the program's name for it."""
    of, last = of_layers(spec, stages), stages - 1
    ends = {"embed": (0, last) if spec.tied and last else (0,)}
    found = {}
    for key, piece in spec.pieces().items():
        first = key.split(".")[0]
        layer = (of[int(first)],) if first.isdigit() else ends.get(first, (last,))
        found[piece.name] = layer
    return found
