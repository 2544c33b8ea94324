"""What the manifest of a training bundle says about how it is trained."""

from pcp.errors import BundleError
from pcp.manifest import Manifest


def batch_shape(manifest: Manifest) -> tuple[int, int]:
    """B and T of a model that takes token ids and targets, both `[B, T]`."""
    data = [t for t in manifest.function("grad").inputs if t.role == "data"]
    shapes = {tuple(t.shape) for t in data}
    if len(data) != 2 or len(shapes) != 1 or len(data[0].shape) != 2:
        found = ", ".join(f"{t.name}: {list(t.shape)}" for t in data) or "none"
        raise BundleError(
            "training needs a model with two data inputs, ids and targets, of one "
            f"shape [batch, block]; this one has {found}"
        )
    return data[0].shape[0], data[0].shape[1]


def check_bundle(manifest: Manifest) -> None:
    """Refuse a bundle that this loop cannot train."""
    if manifest.mode != "train":
        raise BundleError(
            f"a bundle of mode {manifest.mode!r} cannot be trained; "
            "compile with `pcp-compile MODEL --mode train`"
        )
    for name in ("init", "grad", "apply", "eval"):
        manifest.function(name)


def trains_alone(manifest: Manifest) -> bool:
    """Whether nothing is exchanged: a round of such a bundle has one member."""
    return manifest.algorithm is not None and not manifest.collectives


def on_own_clocks(manifest: Manifest) -> bool:
    """Whether a bundle's algorithm is for learners that do not meet."""
    method = manifest.algorithm
    if method is None:
        return False
    return method.kind == "async_local_sgd" or bool(method.hyper.get("own_clocks"))


def meets_inside(manifest: Manifest) -> bool:
    """Whether members exchange between inner steps, before a round ends."""
    names = ("grad_sync", "outer_apply_0")
    return any(name in manifest.functions for name in names)
