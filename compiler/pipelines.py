"""The named pipelines, as data: which passes, in which order.

`$entry`, `$optimizer`, `$algorithm` and its `$derivative` are filled in from the
options. `PREPARE` runs first whatever the mode; what it leaves is the bundle's
`ir/source.mlir`.
"""

from collections.abc import Sequence
from string import Template

from pcp.compiler import catalog
from pcp.passes.core.base import Pipeline

PREPARE = ("pcp-import",)

_CLEAN = ("cse", "canonicalize", "symbol-dce")

#: Behind the last derivative: composites have carried their rules that far.
_SIMPLIFY = ("pcp-inline-composites", "pcp-simplify")

REVERSE = "pcp-grad{func=$entry name=grad}"

#: Before the derivative: training updates nothing narrower than f32.
MASTERS = "pcp-master-weights{func=$entry}"

#: What training differentiates with, for the algorithms that need no gradient; an
#: algorithm that needs no derivative at all begins with a pass that does no harm.
DERIVATIVES: dict[str, str] = {
    "mezo": "cse",
    "forward_gradient": "pcp-jvp{func=$entry name=jvp}",
}

#: What a program says of itself: an argument and a result of one name are one tensor.
_UPDATES = "pcp-verify-inplace{func=*}"

#: The border to IREE, behind all that computes.
_BORDER = ("pcp-lower-to-runtime", "pcp-protect-arguments")

PIPELINES: dict[str, tuple[str, ...]] = {
    "forward": (*_SIMPLIFY, "pcp-legalize", *_CLEAN, _UPDATES, *_BORDER),
    "grad": (
        "pcp-grad{func=$entry name=grad}",
        *_SIMPLIFY,
        "pcp-legalize",
        *_CLEAN,
        *_BORDER,
    ),
    "train": (
        MASTERS,
        "$derivative",
        *_SIMPLIFY,
        "pcp-expand-training{optimizer=$optimizer algorithm=$algorithm}",
        "pcp-accumulate{batch=$batch}",
        "pcp-legalize",
        *_CLEAN,
        "pcp-verify-inplace",
        *_BORDER,
    ),
}

#: For a program that is spread over a mesh: what runs on the whole program, in place
#: of the mode's pipeline, and after the partition on each device's.
WHOLE: dict[str, tuple[str, ...]] = {
    "forward": ("pcp-batch-lookups", *_SIMPLIFY, *_CLEAN),
    "grad": ("pcp-batch-lookups", REVERSE, *_SIMPLIFY, *_CLEAN),
    "train": (
        MASTERS,
        "pcp-batch-lookups",
        REVERSE,
        *_SIMPLIFY,
        "pcp-expand-training{optimizer=$optimizer algorithm=none}",
        "inline",
        *_CLEAN,
    ),
}
SPLIT = (
    "pcp-propagate-sharding",
    "pcp-insert-reshards",
    "pcp-one-owner",
    "pcp-partition",
    "pcp-device-precision",
    "pcp-verify-owners",
    "pcp-verify-plan",
)
STAGES = (
    "pcp-stage{microbatches=$microbatches tied=$tied share-loss=$shared_loss}",
    "pcp-schedule{kind=$schedule}",
    "pcp-lower-schedule",
    "pcp-device-precision",
    "pcp-verify-owners",
    "pcp-verify-plan",
)
DEVICE: dict[str, tuple[str, ...]] = {
    "forward": ("pcp-legalize", *_CLEAN, _UPDATES, *_BORDER),
    "grad": ("pcp-legalize", *_CLEAN, *_BORDER),
    "train": ("pcp-legalize", *_CLEAN, "pcp-verify-inplace", *_BORDER),
}


def whole(mode: str, *, entry: str, optimizer: str = "") -> Pipeline:
    """The passes in front of the partition."""
    text = Template(",".join(WHOLE[mode])).substitute(entry=entry, optimizer=optimizer)
    return catalog.pipeline(f"builtin.module({text})")


def zero(stage: int) -> Pipeline:
    """What training keeps, cut along the data axis."""
    return catalog.pipeline(f"builtin.module(pcp-zero{{stage={stage}}})")


def share_updates() -> Pipeline:
    """A share of each update for each of the members that round differently."""
    return catalog.pipeline("builtin.module(pcp-share-updates)")


def communication(*, bucket_bytes: int, inflight: int, wire: str | None) -> list[str]:
    """The passes on what devices say to each other; 0 and None leave one out."""
    return [
        *([f"pcp-compress-collectives{{wire={wire}}}"] if wire else []),
        *([f"pcp-bucket-collectives{{bytes={bucket_bytes}}}"] if bucket_bytes else []),
        *([f"pcp-overlap-collectives{{inflight={inflight}}}"] if inflight else []),
    ]


def split(communication: Sequence[str] = ()) -> Pipeline:
    """The partition of an annotated program; `communication` before it is checked."""
    *steps, check = SPLIT
    return catalog.pipeline(
        f"builtin.module({','.join([*steps, *communication, check])})"
    )


def stages(
    *,
    microbatches: int,
    schedule: str,
    tied: bool,
    shared_loss: bool = False,
    communication: Sequence[str] = (),
) -> Pipeline:
    """Pipeline stages, their schedule, and a program for each device."""
    *steps, check = STAGES
    text = Template(",".join([*steps, *communication, check])).substitute(
        microbatches=microbatches,
        schedule=schedule,
        tied=str(tied).lower(),
        shared_loss=str(shared_loss).lower(),
    )
    return catalog.pipeline(f"builtin.module({text})")


def device(mode: str) -> Pipeline:
    """The passes on one device's program."""
    return catalog.pipeline(f"builtin.module({','.join(DEVICE[mode])})")


def named(
    name: str,
    *,
    entry: str = "main",
    optimizer: str = "",
    algorithm: str = "",
    batch: int = 0,
) -> Pipeline:
    """The pipeline `name` with its options filled in."""
    kind = algorithm.partition("{")[0]
    derivative = Template(DERIVATIVES.get(kind, REVERSE)).substitute(entry=entry)
    text = Template(",".join(PIPELINES[name])).substitute(
        entry=entry,
        optimizer=optimizer,
        algorithm=algorithm,
        derivative=derivative,
        batch=batch,
    )
    return catalog.pipeline(f"builtin.module({text})")


def prepare(*, infer_roles: bool) -> Pipeline:
    """The passes before the mode's own."""
    steps = [*PREPARE, *(["pcp-infer-roles"] if infer_roles else [])]
    return catalog.pipeline(f"builtin.module({','.join(steps)})")
