"""The named pipelines, as data: which passes, in which order.

`$entry`, `$optimizer` and `$algorithm` are filled in from the options. `PREPARE`
runs first whatever the mode; what it leaves is the bundle's `ir/source.mlir`.
"""

from string import Template

from pcp.compiler import catalog
from pcp.passes.base import Pipeline

PREPARE = ("pcp-import",)

_CLEAN = ("cse", "canonicalize", "symbol-dce")

PIPELINES: dict[str, tuple[str, ...]] = {
    "forward": ("pcp-simplify", "pcp-legalize", *_CLEAN, "pcp-lower-to-runtime"),
    "grad": (
        "pcp-grad{func=$entry name=grad}",
        "pcp-simplify",
        "pcp-legalize",
        *_CLEAN,
        "pcp-lower-to-runtime",
    ),
    "train": (
        "pcp-grad{func=$entry name=grad}",
        "pcp-simplify",
        "pcp-expand-training{optimizer=$optimizer algorithm=$algorithm}",
        "pcp-legalize",
        *_CLEAN,
        "pcp-verify-inplace",
        "pcp-lower-to-runtime",
    ),
}


def named(
    name: str, *, entry: str = "main", optimizer: str = "", algorithm: str = ""
) -> Pipeline:
    """The pipeline `name` with its options filled in."""
    text = Template(",".join(PIPELINES[name])).substitute(
        entry=entry, optimizer=optimizer, algorithm=algorithm
    )
    return catalog.pipeline(f"builtin.module({text})")


def prepare(*, infer_roles: bool) -> Pipeline:
    """The passes before the mode's own."""
    steps = [*PREPARE, *(["pcp-infer-roles"] if infer_roles else [])]
    return catalog.pipeline(f"builtin.module({','.join(steps)})")
