"""A trainer for a bundle, on a device of this machine."""

from typing import Any

from pcp.bundle import Bundle
from pcp.runtime.program import host_processor
from pcp.runtime.transport.signatures import ANYBODY, Trust
from pcp.signing import BUNDLE
from pcp.training.trainer.bundle_trainer import BundleTrainer


def load(
    bundle: Any, device: str, target: str | None, coordinate: int = 0
) -> BundleTrainer:
    """A trainer for `bundle` on an IREE device, e.g. `local-task`.

    Without a target, the first module that the device can run. For a bundle that is
    spread over an island, the rank at `coordinate`.
    """
    return BundleTrainer.load(bundle, device, target, coordinate)


def load_made(
    content: bytes,
    source: str,
    device: str,
    target: str,
    coordinate: int = 0,
    trust: Trust = ANYBODY,
) -> BundleTrainer:
    """A trainer for a bundle that was made for `target`; `source` is for errors.

    `BundleError`, before any of its code is loaded, unless its signature counts for
    `trust`. A bundle without code for `target` gives its best code that runs on that
    target.
    """
    bundle = Bundle.from_bytes(content, source=source)
    trust.check(BUNDLE, bundle.digest, bundle.signatures, source)
    there = [t for t in host_processor.substitutes(target) if t in bundle.targets]
    return load(bundle, device, there[0] if there else None, coordinate)
